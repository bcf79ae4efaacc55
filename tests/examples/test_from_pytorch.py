"""The scripts in examples/from_pytorch/ train as PyTorch's do.

PyTorch's script is made of nnmpi's by its imports, and by the lines in DIFFERS. Both start from the
weights that nnmpi's has when it moves a model to a device, and get the random numbers of nnmpi:
noise, samples and orders of batches.
"""

from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn

FOLDER = Path(__file__).parents[2] / "examples" / "from_pytorch"
IMPORTS = {
    "import nnmpi as torch": "import torch",
    "import nnmpi.": "import torch.",
    "from nnmpi import": "from torch import",
    "from nnmpi.nn import": "from torch.nn import",
    "from nnmpi.utils": "from torch.utils",
}
DIFFERS = {
    name: {f'"{name}.safetensors")': f'"{name}.pt")'} for name in ("dcgan", "siamese", "vae")
} | {"gpt": {}, "unet": {}}
SHORTER = {"EPOCHS = 6, 5": "EPOCHS = 6, 1", "EPOCHS = 16, 24, 3": "EPOCHS = 16, 24, 1"}
SHORTER |= {"EPOCHS = 3": "EPOCHS = 1", "32, 32, 4, 2, 120": "32, 32, 4, 2, 30"}
WIDER = {
    "Embedding().to(device)": "Embedding().to(device, torch.float64)",
    "torch.tensor(split.x).float()": "torch.tensor(split.x).to(torch.float64)",
}
"""In float32 a rounding may decide on which side of the margin a triplet is."""
DRAWS = ("rand", "randn", "randn_like", "randint", "randperm")


def order(self: Any) -> Iterator[int]:
    """The order of a RandomSampler, which itself draws a second one at the end."""
    return iter(nnmpi.randperm(len(self.data_source)).tolist())


def replaced(text: str, parts: dict[str, str]) -> str:
    for a, b in parts.items():
        text = text.replace(a, b)
    return text


def of_pytorch(name: str, text: str) -> tuple[str, int]:
    """PyTorch's script, and how many lines differ besides imports."""
    lines = text.splitlines()
    imports = [replaced(line, IMPORTS) for line in lines]
    theirs = [replaced(line, DIFFERS[name]) for line in imports]
    assert all(
        line.startswith(("import ", "from "))
        for line, other in zip(lines, imports, strict=True)
        if line != other
    )
    assert not any("nnmpi" in line and "nnmpi.data import load" not in line for line in theirs[1:])
    return "\n".join(theirs), sum(a != b for a, b in zip(imports, theirs, strict=True))


def losses(text: str) -> list[float]:
    """What a script has in `losses` at its end, after fewer steps."""
    shorter = replaced(text, SHORTER | WIDER)
    assert shorter != text
    space: dict[str, Any] = {"__name__": "__main__"}
    copy_context().run(exec, compile(shorter, "script", "exec"), space)
    found: list[float] = space["losses"]
    return found


def drawn(torch: Any, name: str) -> Callable[..., Any]:
    """PyTorch's function, with the numbers that nnmpi's draws."""

    def function(*args: Any, device: Any = None, generator: Any = None, **options: Any) -> Any:
        here = [nnmpi.tensor(a.detach().numpy()) if torch.is_tensor(a) else a for a in args]
        return torch.from_numpy(getattr(nnmpi, name)(*here, **options).numpy())

    return function


@pytest.fixture
def one_thread() -> Iterator[Any]:
    """PyTorch without threads, for which the models are too small."""
    torch = pytorch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@needs_torch
@pytest.mark.parametrize("name", DIFFERS)
def test_losses_are_pytorchs(
    name: str, one_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, states = one_thread, []
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ours_to, theirs_to = nn.Module.to, torch.nn.Module.to

    def to(self: nn.Module, *where: Any) -> nn.Module:
        states.append(self.state_dict())
        return ours_to(self, *where)

    def loaded(self: Any, *where: Any) -> Any:
        state = {key: torch.from_numpy(value.numpy()) for key, value in states.pop(0).items()}
        self.load_state_dict(state)
        return theirs_to(self, *where)

    monkeypatch.setattr(nn.Module, "to", to)
    found = losses(text)
    monkeypatch.setattr(torch.nn.Module, "to", loaded)
    monkeypatch.setattr(torch, "manual_seed", nnmpi.manual_seed)
    for draw in DRAWS:
        monkeypatch.setattr(torch, draw, drawn(torch, draw))
    monkeypatch.setattr(torch.utils.data.dataset, "randperm", torch.randperm)
    monkeypatch.setattr(torch.utils.data.RandomSampler, "__iter__", order)
    expected = losses(of_pytorch(name, text)[0])
    assert len(found) > 7
    assert not states
    np.testing.assert_allclose(found, expected, rtol=1e-4)
