"""What a rank sends in a collective."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.collectives import verify
from nnmpi.collectives.algorithms import ALGORITHMS, among
from nnmpi.collectives.step import Algorithm, bounds
from nnmpi.comm.allreduce.interpreter import make_plan
from nnmpi.parallel.arrangement.arrangement import Arrangement


class Sent(NamedTuple):
    """Bytes and messages."""

    bytes: int = 0
    messages: int = 0

    def __add__(self, other: object) -> "Sent":
        assert isinstance(other, Sent)
        return Sent(self.bytes + other.bytes, self.messages + other.messages)

    def times(self, n: int) -> "Sent":
        """So many of it."""
        return Sent(self.bytes * n, self.messages * n)


def carried_out(
    algorithm: Algorithm,
    group: Sequence[int],
    rank: int,
    n: int,
    dtype: np.dtype,
    at: Sequence[int] = (),
) -> Sent:
    """What a rank sends in an algorithm over n numbers; `at` are the edges of its chunks."""
    p = len(group)
    edges = tuple(at) or bounds(n, algorithm.chunks(p))
    plan = make_plan(algorithm, group.index(rank), p, edges, dtype)
    parts = [part for move in plan.moves for part in move.out]
    return Sent(sum(part.stop - part.start for part in parts), len(parts))


def all_reduced(
    a: Arrangement, name: str, group: Sequence[int], rank: int, n: int, dtype: np.dtype
) -> Sent:
    """What a rank sends in an all-reduce by name."""
    if len(group) == 1 or name in ("mpi", "nccl"):  # which know their own ways
        return Sent()
    nodes = a.cluster.beside(tuple(group))
    if name in ("shared", "hierarchical") and len(nodes) > 1:
        first = tuple(group.index(ranks[0]) for ranks in nodes.values())
        return carried_out(among(ALGORITHMS["ring"], lambda p: first), group, rank, n, dtype)
    if name == "shared":
        return Sent()
    algorithm = ALGORITHMS.get(name) or verify.proven(name, [len(group)])
    return carried_out(algorithm, group, rank, n, dtype)
