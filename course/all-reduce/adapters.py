"""All-reduce: the only file that you fill. README.md says what is asked and how it is graded.

comm: rank, size, send, recv, isend, irecv, barrier. x: float64 of shape (n,), summed in place.
"""

from collections.abc import Callable

import numpy as np

from nnmpi.collectives import Algorithm, Step, only
from nnmpi.comm import Comm

# ---- by messages


def server_all_reduce(comm: Comm, x: np.ndarray) -> None:
    """Replaces x, of shape (n,), on every rank by the sum over ranks: rank 0 adds up all arrays.

    Every other rank sends x to rank 0, and rank 0 sends the sum to every other rank.
    """
    raise NotImplementedError


def ring_all_reduce(comm: Comm, x: np.ndarray) -> None:
    """Replaces x, of shape (n,), on every rank by the sum over ranks, along a ring.

    Chunk c of p is x[n * c // p : n * (c + 1) // p]; n may be any number, also below p. In each of
    2 (p - 1) rounds every rank sends one chunk to rank + 1 and receives one from rank - 1.
    """
    raise NotImplementedError


def tree_all_reduce(comm: Comm, x: np.ndarray) -> None:
    """Replaces x, of shape (n,), on every rank by the sum over ranks, along a binomial tree.

    Up in rounds t = 0, 1, ...: with d = 2**t, rank r with r % (2 d) == d sends to r - d, which
    adds. Down in the opposite order. Rank 0 is the root.
    """
    raise NotImplementedError


# ---- as values


def ring_step(t: int, r: int | np.ndarray, p: int) -> Step:
    """The step of rank r of p in round t of the ring: 0 <= t < 2 (p - 1), p chunks.

    r is one rank or an array of them, so write arithmetic, not `if r == 0`. Step(to, (lo, hi),
    source, (lo, hi), reduce): what it sends, what it receives, and whether it adds what arrives.
    """
    raise NotImplementedError


def tree_step(t: int, r: int | np.ndarray, p: int) -> Step:
    """The step of rank r of p in round t of the tree: 0 <= t < 2 L, L = (p - 1).bit_length().

    The buffer is one chunk, (0, 1). only(condition, peer) is the peer where the condition holds,
    and nobody elsewhere.
    """
    raise NotImplementedError


RING = Algorithm(lambda p: 2 * (p - 1), lambda p: p, ring_step)
TREE = Algorithm(lambda p: 2 * (p - 1).bit_length(), lambda p: 1, tree_step)
"""Algorithms as values: rounds of p ranks, chunks of p ranks, steps. Leave them as they are."""


# ---- what they cost


def cost(name: str, p: int, nbytes: float, alpha: float, beta: float) -> float:
    """The seconds of the all-reduce `name` ("server", "ring" or "tree") of nbytes on p ranks.

    A message of m bytes takes alpha + m * beta seconds. A rank sends one and receives one at a
    time. Adding costs nothing. For the ring, p divides the buffer.
    """
    raise NotImplementedError


def crossover(p: int, alpha: float, beta: float) -> float:
    """The number of bytes at which the ring and the tree cost the same, for p >= 4.

    With fewer bytes the tree is faster, with more the ring.
    """
    raise NotImplementedError


def seconds_of(
    comm: Comm, all_reduce: Callable[[Comm, np.ndarray], None], x: np.ndarray, repeats: int
) -> float:
    """The seconds that all_reduce(comm, x) takes, the same number on every rank.

    In each repetition all ranks start together (a barrier), and it takes as long as on the slowest
    rank; of the repetitions the fastest counts, since nothing makes a machine too fast. Exchange
    the times by one of your functions: all_reduce itself is called `repeats` times.
    """
    raise NotImplementedError
