"""PyTorch scripts run with their imports swapped, and print and train what they do under PyTorch.

The scripts in scripts/ are written for PyTorch, as its users write them. Only lines that import
from torch are changed. Both runs have the same random numbers and initial weights (`same_draws`).
Compared are the value of each tensor on which `backward` is called, and all that is printed: words
exactly, numbers within the tolerance and one unit of their last digit.
"""

import contextlib
import io
import os
import random
import re
import runpy
import sys
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch
from helpers.same_draws import Draws

import nnmpi

pytestmark = [
    needs_torch,
    pytest.mark.all_add_ons,
    pytest.mark.filterwarnings("ignore"),  # nnmpi warns of options that change nothing
]

FOLDER = Path(__file__).with_name("scripts")
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SAMPLE = {"checkpoint_resume", "cifar_resnet", "mnist_convnet", "style_transfer"}
SAMPLE |= {"actor_critic", "char_gpt", "ddp_training", "packed_lstm"}
"""The scripts that run without --all."""

TOLERANCE = 1e-4
WIDER = {"style_transfer": 2e-3, "unet_dice": 5e-3, "mixture_density": 1e-3}
"""The tolerance of scripts in which differences of roundings grow: by L-BFGS, which divides by
small differences, and in a max-pool, which may take another one of two elements that are nearly
equal. Losses of `mixture_density` are sums of terms of both signs, and some are nearly 0."""

IMPORT = re.compile(r"^(\s*(?:import|from)\s+)torch\b(.*)$", re.MULTILINE)
DTYPE = re.compile(r"\btorch\.(?=u?int\d|float\d|bfloat16|bool)")
"""What nnmpi's names of types lack, which are NumPy's."""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\bnan\b|\binf\b)")


SIZE = re.compile(r"torch\.Size\(\[([\d, ]*)\]\)")
"""A shape as PyTorch prints it; in nnmpi it is a tuple."""


def as_tuple(size: re.Match[str]) -> str:
    """The text of a tuple with the numbers of a shape."""
    return repr(tuple(map(int, size[1].split(", ") if size[1] else [])))


class Run(NamedTuple):
    """The values on which `backward` was called, and the text that was printed."""

    losses: list[float]
    text: str


def swapped(text: str) -> str:
    """The script for nnmpi: only lines that import from torch differ."""
    lines = IMPORT.sub(r"\1nnmpi\2", text).split("\n")
    return "\n".join(
        f"{line} as torch" if line.strip() == "import nnmpi" else line for line in lines
    )


def run(path: Path, library: Any, patch: pytest.MonkeyPatch) -> Run:
    """Runs a script as a program, which has no arguments."""
    losses: list[float] = []
    backward = library.Tensor.backward

    def noted(self: Any, *args: Any, **options: Any) -> None:
        if "until" not in options:  # by which nnmpi computes `autograd.grad`
            losses.append(float(self.detach().sum()))
        backward(self, *args, **options)

    patch.setattr(library.Tensor, "backward", noted)
    for devices in (library.cuda, library.accelerator):  # draws are shared between CPUs
        patch.setattr(devices, "is_available", lambda: False)
    patch.setattr(sys, "argv", [str(path)])
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - scripts draw from it
    text = io.StringIO()
    with contextlib.redirect_stdout(text), mock.patch.dict(os.environ):  # which scripts set
        copy_context().run(runpy.run_path, str(path), run_name="__main__")
    return Run(losses, text.getvalue())


def both(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """What a script gives under PyTorch, and with imports swapped under nnmpi."""
    torch, draws = pytorch(), Draws()
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are too small for more
    try:
        with monkeypatch.context() as patch:
            draws.keep(patch, torch)
            # PyTorch's databases, which other tests use, forbid scripts to set cudnn's flags
            frozen: Any = torch.backends.flags_frozen
            patch.setitem(frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
            theirs = run(FOLDER / f"{name}.py", torch, patch)
    finally:
        torch.set_num_threads(threads)
    script = folder / f"{name}.py"
    script.write_text(swapped((FOLDER / script.name).read_text(encoding="utf-8")), "utf-8")
    with monkeypatch.context() as patch:
        draws.repeat(patch, nnmpi)
        ours = run(script, nnmpi, patch)
    assert draws.left == 0, f"PyTorch draws {draws.results[-draws.left][0]} too"
    return ours, theirs


def compare_texts(ours: str, theirs: str, tolerance: float) -> None:
    """Raises AssertionError for other words, or for a number that differs by more than the
    tolerance and a unit of its last digit."""
    lines = ours.splitlines(), DTYPE.sub("", SIZE.sub(as_tuple, theirs)).splitlines()
    assert len(lines[0]) == len(lines[1])
    for our, their in zip(*lines, strict=True):
        assert NUMBER.sub("0", our) == NUMBER.sub("0", their)
        for a, b in zip(NUMBER.findall(our), NUMBER.findall(their), strict=True):
            mantissa, _, exponent = b.lower().partition("e")
            _, point, decimals = mantissa.partition(".")
            unit = 10.0 ** (int(exponent or 0) - len(decimals)) if point else 0.0
            equal = np.isclose(float(a), float(b), tolerance, 1.01 * unit, equal_nan=True)
            assert equal, f"nnmpi prints {our!r}, PyTorch {their!r}"


@pytest.mark.parametrize(
    "name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.long) for n in NAMES]
)
def test_script(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both(name, tmp_path, monkeypatch)
    tolerance = WIDER.get(name, TOLERANCE)
    assert len(theirs.losses) >= 8
    np.testing.assert_allclose(ours.losses, theirs.losses, tolerance, 1e-7)
    compare_texts(ours.text, theirs.text, tolerance)


def test_only_imports_are_swapped() -> None:
    for name in NAMES:
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        pairs = zip(text.split("\n"), swapped(text).split("\n"), strict=True)
        changed = [theirs.strip() for theirs, ours in pairs if ours != theirs]
        assert changed
        assert all(line.startswith(("import torch", "from torch")) for line in changed)
        assert "nnmpi" not in text
