"""PyTorch as an oracle for what an op must give, where it is installed.

    @needs_torch
    def test_...():
        torch = pytorch()

    @needs_torch
    def test_...():
        same_as_pytorch(lambda n, x: n.exp(x), np.ones(3))

The other tests of a file run without it.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nnmpi

MISSING = "PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason=MISSING)


def pytorch() -> ModuleType:
    """PyTorch, imported by the first test that needs it."""
    return import_module("torch")


def results(n: Any, program: Callable[..., Any], *arrays: np.ndarray) -> list[Any]:
    """What program(n, *leaves) returns, one tensor or several, and the gradients of the leaves.

    The leaves are tensors of the library n with these values; those of integers have no gradient.
    """
    leaves = [n.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    found = program(n, *leaves)
    outputs = [*found] if isinstance(found, tuple | list) else [found]
    losses = [
        (y * (k + y + n.tensor(np.cos(np.arange(y.numel())).reshape(tuple(y.shape))))).sum()
        for k, y in enumerate(outputs)
        if hasattr(y, "requires_grad") and y.requires_grad
    ]
    if losses:
        sum(losses).backward()
    grads = [x.grad for x in leaves if x.grad is not None]
    return [y.detach().numpy() if hasattr(y, "detach") else y for y in (*outputs, *grads)]


def same_as_pytorch(
    program: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-12, atol: float = 1e-14
) -> None:
    """The program gives the same values, types and gradients with nnmpi as with PyTorch."""
    ours, theirs = (results(n, program, *arrays) for n in (nnmpi, pytorch()))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, strict=True)
