"""The scripts in examples/from_pytorch/ train as PyTorch's do.

PyTorch's script is made of nnmpi's by its imports, and by the lines in DIFFERS. nnmpi's gets the
weights, noise, samples and orders of batches that PyTorch's has drawn (`same_draws`).
"""

from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch
from helpers.same_draws import Draws

import nnmpi

pytestmark = [needs_torch, pytest.mark.all_add_ons]

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
SHORTER |= {"EPOCHS = 3": "EPOCHS = 1", "4, 2, 120": "4, 2, 10", "start, 60": "start, 36"}
WIDER = {
    "Embedding().to(device)": "Embedding().to(device, torch.float64)",
    "torch.tensor(split.x).float()": "torch.tensor(split.x).to(torch.float64)",
}
"""In float32 a rounding may decide on which side of the margin a triplet is."""


def replaced(text: str, parts: dict[str, str]) -> str:
    for a, b in parts.items():
        text = text.replace(a, b)
    return text


def of_pytorch(name: str, text: str) -> str:
    """PyTorch's script."""
    lines = text.splitlines()
    imports = [replaced(line, IMPORTS) for line in lines]
    theirs = [replaced(line, DIFFERS[name]) for line in imports]
    assert all(
        line.startswith(("import ", "from "))
        for line, other in zip(lines, imports, strict=True)
        if line != other
    )
    assert not any("nnmpi" in line and "nnmpi.data import load" not in line for line in theirs[1:])
    return "\n".join(theirs)


def losses(text: str) -> list[float]:
    """What a script has in `losses` at its end, after fewer steps."""
    shorter = replaced(text, SHORTER | WIDER)
    assert shorter != text
    space: dict[str, Any] = {"__name__": "__main__"}
    copy_context().run(exec, compile(shorter, "script", "exec"), space)
    found: list[float] = space["losses"]
    return found


@pytest.fixture
def one_thread() -> Iterator[Any]:
    """PyTorch without threads, for which the models are too small."""
    torch = pytorch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", DIFFERS)
def test_losses_are_pytorchs(
    name: str, one_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, draws = (FOLDER / f"{name}.py").read_text(encoding="utf-8"), Draws()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        draws.keep(patch, one_thread)
        expected = losses(of_pytorch(name, text))
    with monkeypatch.context() as patch:
        draws.repeat(patch, nnmpi)
        found = losses(text)
    assert draws.left == 0
    assert len(found) > 7
    np.testing.assert_allclose(found, expected, rtol=1e-4)
