"""The same parameters under the same optimizers here and in PyTorch."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from helpers.ops.oracle import pytorch
from nnmpi import nn, optim


class Twins:
    """Parameters, and their optimizers, which `make(library, parameters)` returns."""

    def __init__(self, mine: Iterable[nn.Parameter], make: Callable[[Any, Any], list[Any]]) -> None:
        torch = pytorch()
        self.mine = [*mine]
        self.theirs = [torch.nn.Parameter(torch.tensor(p.array)) for p in self.mine]
        self.ours, self.oracles = make(optim, self.mine), make(torch.optim, self.theirs)
        self.optimizers = *self.ours, *self.oracles

    def step(self, gradients: Iterable[np.ndarray | None]) -> None:
        """A step of all; of a parameter for which there is None, the gradient is left as it is."""
        torch = pytorch()
        for p, q, g in zip(self.mine, self.theirs, gradients, strict=True):
            if g is not None:
                p.grad, q.grad = g, torch.tensor(g)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # NAdam has numbers of that type
        try:
            for opt in self.optimizers:
                opt.step()
        finally:
            torch.set_default_dtype(default)

    def compare(self, close: float = 2e-12) -> None:
        """Raises AssertionError for parameters that differ by more than a part of the largest."""
        for p, q in zip(self.mine, self.theirs, strict=True):
            expected = q.detach().numpy()
            assert p.data.dtype == expected.dtype == "float64"
            assert np.abs(p.data - expected).max() <= close * np.abs(expected).max()
