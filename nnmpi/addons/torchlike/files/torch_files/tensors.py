"""Reads a state_dict that `torch.save` has written, as tensors from which a model is loaded."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.torchlike.files.torch_files.reading import read
from nnmpi.options.quoting import shown


class ReadTensor(NamedTuple):
    """A tensor of a PyTorch file, with the interface of a StoredTensor of safetensors; its array is
    in memory, since the whole file had to be read."""

    file: Path
    name: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array that `read` returns."""
        return self.array.dtype

    def read(self, part: tuple[slice, ...] = ()) -> np.ndarray:
        """Returns a copy of the tensor, or of its slice `part`, in C order."""
        return np.array(self.array[part], order="C")


def tensors(file: Path) -> dict[str, ReadTensor]:
    """Returns a state_dict's tensors; raises ValueError for a file with other values."""
    state = read(file)
    if not _is_state(state):
        raise ValueError(f"cannot load {shown(file)}: it is no state_dict; {_remedy(file, state)}")
    return {name: ReadTensor(file, name, array) for name, array in state.items()}


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(array, np.ndarray) for name, array in value.items()
    )


def _remedy(file: Path, state: Any) -> str:
    """Returns advice for a file that is not just a state_dict: how to save or extract one."""
    if not isinstance(state, dict):
        return "save model.state_dict() in PyTorch"
    states = [key for key, value in state.items() if _is_state(value) and value]
    if not states:
        keys = shown(", ".join(map(str, state)), 80)
        return f"it has the keys {keys}: save model.state_dict() alone in PyTorch"
    target = shown(file.with_suffix(".safetensors"))
    return (
        f'take the one in it: python -c "import nnmpi; '
        f"nnmpi.save(nnmpi.load('{shown(file)}')[{states[0]!r}], '{target}')\""
    )
