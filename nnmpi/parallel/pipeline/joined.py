"""Joined: several tensors as one, so that a backward pass through all of them has one root."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.autograd.tape import TapeNode, tick
from nnmpi.backend import Array


class Joined(Tensor):
    """A number that nobody reads; a backward pass gives each part the gradient set by `seed`."""

    __slots__ = ("_gradients", "parts")

    def __init__(self, parts: Sequence[Tensor]) -> None:
        super().__init__(np.zeros(()))
        self.parts = parts
        self._gradients: Sequence[Any] = ()
        needs = [t.requires_grad for t in parts]
        if True in needs and recording.get():
            vjps = tuple(partial(self._gradient, k) for k in range(len(parts)))
            self.requires_grad = True
            self.node = TapeNode(parts, needs, vjps, None, tick())

    def seed(self, gradients: Sequence[Array | None]) -> Array:
        """What a backward pass starts from; gradients of parts that require none are not read."""
        self._gradients = gradients
        return np.zeros(())

    def _gradient(self, k: int, g: Any, out: Array | None) -> Any:
        return self._gradients[k]
