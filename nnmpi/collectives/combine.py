"""Functions that make collective algorithms from others, and the algorithm Swing.

An algorithm can be run on some of the ranks (`within`, `among`), on several parts of the buffer at
the same time (`beside`), or along the sides of a torus (`along`). After a reduce-scatter that
`beside`, `along` or `swing` has made, rank r does not hold chunk r, but another one. So it is only
used as the first half of an all-reduce, whose second half, its transpose, brings the chunks back.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.collectives.step import NOBODY, Algorithm, Ranks, Step, only

Shape: TypeAlias = tuple[int, ...]


def placed(s: Step, place: Callable[[Ranks], Ranks], inside: Ranks = True) -> Step:
    """Returns step s with peer r as `place(r)`; ranks for which `inside` is False do nothing."""
    to, source = (only(inside & (np.asarray(x) >= 0), place(x)) for x in (s.to, s.source))
    return s._replace(to=to, source=source)


def within(a: Algorithm, q: int, stride: int = 1) -> Algorithm:
    """Makes an algorithm that runs a within each group of q ranks, whose numbers differ by
    `stride`. If the last group is smaller, a must accept any number of ranks."""

    def at(t: int, r: Ranks, p: int) -> Step:
        index = r // stride % q
        first = r - index * stride
        s = a.at(t, index, q if p % (q * stride) == 0 else np.minimum(q, p - first))
        return placed(s, lambda x: first + x * stride)

    return Algorithm(lambda p: a.rounds(min(q, p)), lambda p: a.chunks(min(q, p)), at)


def among(a: Algorithm, members: Callable[[int], Sequence[int]]) -> Algorithm:
    """Runs algorithm a on the ranks `members(p)`, in this order; others do nothing."""

    def at(t: int, r: Ranks, p: int) -> Step:
        ranks = np.asarray(members(p))
        index = np.full(p, NOBODY)
        index[ranks] = np.arange(len(ranks))
        s = a.at(t, index[r], len(ranks))
        return placed(s, ranks.__getitem__, index[r] >= 0)

    return Algorithm(lambda p: a.rounds(len(members(p))), lambda p: a.chunks(len(members(p))), at)


@cache
def rooted(a: Algorithm, root: int) -> Algorithm:
    """Returns algorithm a with root `root` instead of 0, by rotated rank numbers."""
    return among(a, lambda p: [*range(root, p), *range(root)])._replace(one_way=True)


def beside(parts: Sequence[Algorithm]) -> Algorithm:
    """Makes an algorithm that runs several at the same time, each on another part of the buffer.
    All must have the same numbers of rounds and of chunks."""
    n = len(parts)

    def at(t: int, r: Ranks, p: int) -> Step:
        i = t % n
        s = parts[i].at(t // n, r, p)
        s = s._replace(port=s.port * n + i, ports=s.ports * n)
        return s.moved(i * parts[0].chunks(p))

    return Algorithm(lambda p: n * parts[0].rounds(p), lambda p: n * parts[0].chunks(p), at)


def at_once(a: Algorithm, ports: int) -> Algorithm:
    """Makes `ports` consecutive steps one round, with as many messages at once."""

    def at(t: int, r: Ranks, p: int) -> Step:
        port = t % ports
        return a.at(t, r, p)._replace(port=port, ports=min(ports, a.rounds(p) - t + port))

    return Algorithm(a.rounds, a.chunks, at)


# Ranks are the cells of a box with sides of s ranks. A reduce-scatter along the first side leaves
# each rank 1/s of the buffer, which is reduced along the next side, and so on.
#
#   sides 2 x 3      r    0  1  2  3  4  5
#              first side    0-2      3-5      chunks that a rank still reduces
#             second side    0  1  2  3  4  5
def along(a: Algorithm, sides: Callable[[int], Shape], first: int = 0) -> Algorithm:
    """Makes an algorithm that runs a along each side of a grid of ranks in turn, starting with side
    `first`; the product of the lengths `sides(p)` is p."""

    def order(p: int) -> list[int]:
        n = len(sides(p))
        return [(first + i) % n for i in range(n)]

    def at(t: int, r: Ranks, p: int) -> Step:
        shape, base, size = sides(p), 0, p
        for i in order(p):
            stride = prod(shape[i + 1 :])
            x, size = r // stride % shape[i], size // shape[i]
            if t < a.rounds(shape[i]):
                break
            base, t = base + x * size, t - a.rounds(shape[i])
        s = a.at(t, x, shape[i]).moved(base, size)
        return placed(s, lambda peer: r + (peer - x) * stride)

    return Algorithm(lambda p: sum(map(a.rounds, sides(p))), lambda p: p, at)


def factors(p: int) -> Shape:
    """The prime factors of p, but 4 for each pair of factors 2: 24 gives (4, 2, 3)."""
    if p == 1:
        return ()
    f = next(f for f in (4, 2, *range(3, p, 2), p) if p % f == 0)
    return (f, *factors(p // f))


# Swing (De Sensi et al., NSDI 2024): in step s of a ring, even ranks exchange with the rank that is
# rho(s) = 1 - 2 + 4 - ... further on, odd ones with the rank that is rho(s) back:
#
#   p = 8    s = 0, rho 1     0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7
#                1, rho -1    0 <-> 7   2 <-> 1   4 <-> 3   6 <-> 5
#                2, rho 3     0 <-> 3   2 <-> 5   4 <-> 7   6 <-> 1
class Partners(NamedTuple):
    """The partners of a recursive halving: a rank exchanges half of its chunks in each step.

    of     the partner of each rank in each step, an array (steps, ranks)
    chunk  the chunk of the buffer whose sum each rank has at the end, an array (ranks,)
    """

    of: Ranks
    chunk: Ranks


@cache
def swing_partners(shape: Shape, first: int, turn: int) -> Partners:
    """The partners of Swing on a torus with these sides, all powers of two.

    The steps go through the sides in turn, starting with side `first`. `turn` is 1, or -1 for the
    mirror image: each rank's partner lies in the opposite direction.
    """
    ranks, n, rows = np.arange(prod(shape)), len(shape), []
    for s in range(max(shape).bit_length()):
        for i in ((first + i) % n for i in range(n)):
            if 1 << s < shape[i]:
                stride = prod(shape[i + 1 :])
                x = ranks // stride % shape[i]
                rho = (1 - (-2) ** (s + 1)) // 3 * turn
                y = (x + np.where(x % 2 == 0, rho, -rho)) % shape[i]
                rows.append(ranks + (y - x) * stride)
    of = np.array(rows, int).reshape(-1, len(ranks))
    return Partners(of, _chunks(of))


def _chunks(of: Ranks) -> Ranks:
    """Returns the chunk that each rank holds after a recursive halving, (ranks,), from the partners
    `of` (steps, ranks). Ranks that exchange last get neighbouring chunks."""
    group, chunk = np.arange(of.shape[1]), np.zeros(of.shape[1], int)
    for bit, partner in enumerate(of[::-1]):
        wider = np.minimum(group, group[partner])  # the least rank of those that exchange from here
        chunk += (group != wider) << bit
        group = wider
    return chunk


def swing(sides: Callable[[int], Shape], first: int, turn: int) -> Algorithm:
    """The Swing reduce-scatter, with one message at a time: in each step a rank sends half of the
    chunks that it is still reducing to its partner, and adds the other half that it receives. The
    sides are powers of two; `first` and `turn` as in `swing_partners`."""

    def at(t: int, r: Ranks, p: int) -> Step:
        partners = swing_partners(sides(p), first, turn)
        peer, half = partners.of[t, r], p >> (t + 1)
        theirs, mine = partners.chunk[peer] & -half, partners.chunk[r] & -half
        return Step(peer, (theirs, theirs + half), peer, (mine, mine + half), True)

    return Algorithm(lambda p: len(swing_partners(sides(p), first, turn).of), lambda p: p, at)
