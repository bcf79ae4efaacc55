"""`t.retain_grad()`: a result keeps its gradient, as leaves do."""

from collections.abc import Sequence
from typing import Any
from weakref import ref

from nnmpi.arrays.backend import Array
from nnmpi.autograd.recording import TapeNode, recording
from nnmpi.autograd.tensor import Tensor


def retain_grad(t: Tensor) -> None:
    """Makes backward passes add the gradient of a result to `t.grad`; does nothing to a leaf. The
    node of the result calls `prepare` with the complete gradient."""
    if not t.requires_grad:
        raise RuntimeError(
            "retain_grad: this tensor requires no gradient: compute it from one that does"
        )
    node = t.node
    if node is None:
        return
    record = recording.get()
    if not isinstance(record, bool):
        record.enter("retain_grad")
    if node.runs_again:
        raise RuntimeError(
            "retain_grad: this is the result of a checkpointed function, which runs again: write "
            "t = t.clone() before it"
        )
    node.prepare = _Retaining(t, node)


class _Retaining:
    """The `prepare` of a node whose tensor keeps its gradient; it calls the one of the op."""

    def __init__(self, t: Tensor, node: TapeNode) -> None:
        self._tensor, self._tick = ref(t), node.tick
        self._plain, self._last = node.prepare, None

    def __call__(self, g: Array, needs: Sequence[bool]) -> Any:
        t = self._tensor()
        if t is not None and self._last is not g:  # once in a pass of two halves
            if t.node is None or t.node.tick != self._tick:
                raise RuntimeError(
                    f"retain_grad: the tensor of shape {t.shape} was written in place after it: "
                    "call it after the write, or write to a copy"
                )
            t.receive(lambda g, out: g, g)
            self._last = g
        return g if self._plain is None else self._plain(g, needs)
