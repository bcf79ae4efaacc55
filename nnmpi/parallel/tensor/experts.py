"""Experts on ranks: each rank has some of them, and computes these for all tokens.

          x, gates whole on all ranks ──► experts of this rank ──► all-reduce ──► y whole

Tokens are whole on all ranks along tp, so none has to travel to its expert. Backward, one
all-reduce has the gradients of x and of the gates, of which each rank has the terms of its own
experts.
"""

from collections.abc import Sequence
from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import experts
from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels import Result
from nnmpi.nn.layers.experts import Experts
from nnmpi.parallel.tensor.layers import Sharded
from nnmpi.parallel.tensor.ops import all_reduce, own


class ShardedExperts(Sharded, Experts):
    """Experts of which each rank has some, with `bounds`; input and output are whole."""

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        weights = self.weight1, self.bias1, self.weight2, self.bias2
        options = self.options(x) | {"start": own(self.bounds, self.comm)[0], "comm": self.comm}
        return apply(experts_on_ranks, x, gates, *weights, **options)


def experts_on_ranks(x: Array, gates: Array, *weights: Array, comm: Comm, **options: Any) -> Result:
    """`experts` of all ranks, from those of this rank."""
    result = experts.experts(x, gates, *weights, **options)
    y, plain, xp = result.value, result.prepare, xp_of(x)
    assert plain is not None
    all_reduce(y, comm, tuple(range(y.ndim)))

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[list[Array | None], Any]:
        """The gradients of x and of the gates, summed; and what the others share."""
        shared = plain(g, needs)
        pairs = zip(result.vjps[:2], needs[:2], strict=True)
        found = [vjp(shared, None) if need else None for vjp, need in pairs]
        parts = [d.reshape(-1) for d in found if d is not None]
        if parts:
            row = xp.concatenate(parts)
            all_reduce(row, comm)
            found = _like(found, row)
        return found, shared

    picks: list[Any] = [lambda found, out, i=i: found[0][i] for i in range(2)]
    rest: list[Any] = [lambda found, out, vjp=vjp: vjp(found[1], out) for vjp in result.vjps[2:]]
    return Result(y, (*picks, *rest), prepare)


def _like(arrays: list[Array | None], row: Array) -> list[Array | None]:
    """What is in a row, in the shapes of these arrays."""
    found, at = list[Array | None](), 0
    for array in arrays:
        size = 0 if array is None else array.size
        found.append(None if array is None else row[at : at + size].reshape(array.shape))
        at += size
    return found
