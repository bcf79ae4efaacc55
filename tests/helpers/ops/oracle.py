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


in_both = pytest.mark.parametrize("library", ["nnmpi", pytest.param("torch", marks=needs_torch)])
"""The test runs with the name of each library: n = import_module(library)."""


def pytorch() -> ModuleType:
    """PyTorch, imported by the first test that needs it."""
    return import_module("torch")


def twins(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The layers make(nnmpi.nn) and make(torch.nn) in float64, with the same random weights: what
    starts as 0 or 1 hides mistakes."""
    torch, (ours, theirs) = pytorch(), (make(n.nn).double() for n in (nnmpi, pytorch()))
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    with torch.no_grad():
        for k, p in enumerate(theirs.parameters()):
            p.copy_(torch.tensor(np.random.default_rng(k).standard_normal(tuple(p.shape)) / 2))
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    return ours, theirs


def results(
    n: Any, program: Callable[..., Any], *arrays: np.ndarray, layer: Any = None
) -> list[Any]:
    """What program(n, *leaves), or program(n, layer, *leaves), returns, one tensor or several, and
    the gradients of the leaves and of the parameters of the layer.

    The leaves are tensors of the library n with these values; those of integers have no gradient.
    """
    leaves = [n.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    found = program(n, *([] if layer is None else [layer]), *leaves)
    outputs = [*found] if isinstance(found, tuple | list) else [found]
    losses = [
        (y * (k + y + n.tensor(_weights(y.numel())).reshape(tuple(y.shape)).to(y.dtype))).sum()
        for k, y in enumerate(outputs)
        if hasattr(y, "requires_grad") and y.requires_grad
    ]
    if losses:
        sum(losses).backward()
    leaves += [] if layer is None else [*layer.parameters()]
    grads = [x.grad for x in leaves if x.grad is not None]
    return [y.detach().numpy() if hasattr(y, "detach") else y for y in (*outputs, *grads)]


def _weights(size: int) -> np.ndarray:
    """One for each element, which numbers of 16 bits have exactly."""
    return np.round(8 * np.cos(np.arange(size))) / 8


def same_as_pytorch(
    program: Callable[..., Any],
    *arrays: np.ndarray,
    make: Callable[[Any], Any] | None = None,
    rtol: float = 1e-12,
    atol: float = 1e-14,
) -> None:
    """The program gives the same values, types and gradients with nnmpi as with PyTorch.

    It is given the layer make(n.nn) of each library, with the same weights, if there is `make`.
    """
    layers = (None, None) if make is None else twins(make)
    ours, theirs = (
        results(n, program, *arrays, layer=layer)
        for n, layer in zip((nnmpi, pytorch()), layers, strict=True)
    )
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, strict=True)
