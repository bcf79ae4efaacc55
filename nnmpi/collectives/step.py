"""What a collective algorithm is: in each round, who sends which chunks to whom.

A buffer of n elements is cut into `chunks` pieces, and a range (lo, hi) names pieces lo to hi - 1.
An `Algorithm` answers one question, `at(t, r, p)`: what does rank r of p do in round t? The answer
is plain arithmetic, so r may be one rank or `arange(p)`: whoever carries the plan out asks for one
rank, whoever proves, prices or draws it asks for all of them at once.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import lcm
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = Any  # an int or an array of them; NumPy's scalars and ndarrays share no type
Range: TypeAlias = tuple[Ranks, Ranks]

NOBODY = -1


class Step(NamedTuple):
    """One rank's part in one round: a message out, a message in, or NOBODY for either.

    Both leave at once, so what is sent is what the rank held before the round.
    """

    to: Ranks
    send: Range
    source: Ranks
    recv: Range
    reduce: bool  # add what arrives to what is there, or put it there; alike for all ranks


class Algorithm(NamedTuple):
    """A collective as a value: three functions of the number of ranks p.

    `at` is array arithmetic, `only` and `np.where` in place of `if`, so that it can be asked for
    all ranks at once.
    """

    rounds: Callable[[int], int]
    chunks: Callable[[int], int]
    at: Callable[[int, Ranks, Ranks], Step]  # (t, r, p)

    def steps(self, r: Ranks, p: int) -> Iterator[Step]:
        """What rank r (or every rank in r) does, round by round."""
        return (self.at(t, r, p) for t in range(self.rounds(p)))


def cut(n: int, chunks: int, i: int) -> int:
    """Where chunk i of n elements begins; sizes differ by one element at most."""
    return n * i // chunks


def only(condition: Any, peer: Ranks) -> NDArray[np.int_]:
    """The peer where the condition holds, else NOBODY."""
    return np.where(condition, peer, NOBODY)


def apart(step: Step, p: int) -> list[Step]:
    """The step of all p ranks as one step a rank, of plain integers."""
    fields = (step.to, *step.send, step.source, *step.recv)
    columns = [np.broadcast_to(np.asarray(x), p).tolist() for x in fields]
    return [
        Step(to, (lo, hi), source, (into_lo, into_hi), step.reduce)
        for to, lo, hi, source, into_lo, into_hi in zip(*columns, strict=True)
    ]


def reverse(a: Algorithm) -> Algorithm:
    """The same messages the other way, the last round first."""

    def at(t: int, r: Ranks, p: Ranks) -> Step:
        s = a.at(a.rounds(p) - 1 - t, r, p)
        return Step(s.source, s.recv, s.to, s.send, s.reduce)

    return Algorithm(a.rounds, a.chunks, at)


def transpose(a: Algorithm) -> Algorithm:
    """Reversed, with adding and putting exchanged.

    Written as a matrix from what all ranks hold before to what they hold after, this is the
    transpose: a reduction to one rank becomes a broadcast from it, a reduce-scatter an all-gather.
    """

    def at(t: int, r: Ranks, p: Ranks) -> Step:
        s = reverse(a).at(t, r, p)
        return s._replace(reduce=not s.reduce)

    return Algorithm(a.rounds, a.chunks, at)


def then(a: Algorithm, b: Algorithm) -> Algorithm:
    """First a, then b, over a buffer that is cut finely enough for both."""

    def chunks(p: int) -> int:
        return lcm(a.chunks(p), b.chunks(p))

    def at(t: int, r: Ranks, p: int) -> Step:
        n = a.rounds(p)
        part, s = (a, a.at(t, r, p)) if t < n else (b, b.at(t - n, r, p))
        k = chunks(p) // part.chunks(p)
        return s._replace(send=(s.send[0] * k, s.send[1] * k), recv=(s.recv[0] * k, s.recv[1] * k))

    return Algorithm(lambda p: a.rounds(p) + b.rounds(p), chunks, at)


@cache
def rooted(a: Algorithm, root: int) -> Algorithm:
    """The plan turned, so that `root` does what rank 0 did; for plans that never cut the buffer."""

    def at(t: int, r: Ranks, p: int) -> Step:
        s = a.at(t, (r - root) % p, p)
        to, source = np.asarray(s.to), np.asarray(s.source)
        return s._replace(
            to=only(to >= 0, (to + root) % p), source=only(source >= 0, (source + root) % p)
        )

    return Algorithm(a.rounds, a.chunks, at)
