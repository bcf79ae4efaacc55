"""A proof by carrying a plan out on names instead of numbers.

Each rank holds, for each chunk, an expression: one rank's contribution, or the sum of two
expressions. Sums are pairs without order, so that two expressions have one number exactly if they
are one summation tree up to commuting operands: the condition under which floating point gives all
ranks identical bits.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.collectives.step import Algorithm, Step, apart

Holds: TypeAlias = Callable[[int, int], bool]  # (rank, chunk)
Contributors: TypeAlias = Callable[[int, int], set[int] | None]  # (rank, chunk); None: anything


class PlanError(ValueError):
    """An algorithm that does not do what it claims."""


class Claim(NamedTuple):
    """What a collective starts from and what it has to end with, for p ranks."""

    starts: Callable[[int], Holds]
    ends: Callable[[int], Contributors]


def _everybody(p: int) -> Contributors:
    return lambda r, c: set(range(p))


ALL_REDUCE = Claim(lambda p: lambda r, c: True, _everybody)
REDUCE_SCATTER = Claim(
    lambda p: lambda r, c: True, lambda p: lambda r, c: set(range(p)) if r == c else None
)
ALL_GATHER = Claim(lambda p: lambda r, c: r == c, lambda p: lambda r, c: {c})


def reduce_to(root: int) -> Claim:
    """Everybody's sum at one rank; what the others hold then means nothing."""
    return Claim(
        lambda p: lambda r, c: True, lambda p: lambda r, c: set(range(p)) if r == root else None
    )


def broadcast_from(root: int) -> Claim:
    """One rank's buffer at everybody."""
    return Claim(lambda p: lambda r, c: r == root, lambda p: lambda r, c: {root})


REDUCE, BROADCAST = reduce_to(0), broadcast_from(0)


class _Sums:
    """Expressions by number: 0 to p - 1 are the ranks' contributions, the rest are sums."""

    def __init__(self, p: int) -> None:
        self.names = [1 << r for r in range(p)]  # who is in it, a bit a rank
        self._known: dict[tuple[int, int], int] = {}

    def add(self, a: int, b: int) -> int:
        pair = (min(a, b), max(a, b))
        if pair not in self._known:
            self._known[pair] = len(self.names)
            self.names.append(self.names[a] | self.names[b])
        return self._known[pair]

    def both(self, a: int, b: int) -> set[int]:
        """The ranks whose contribution is in a and in b."""
        return ranks(self.names[a] & self.names[b])


def ranks(bits: int) -> set[int]:
    """The set that a number's bits stand for."""
    return {r for r in range(bits.bit_length()) if bits >> r & 1}


def verify(algorithm: Algorithm, p: int, claim: Claim = ALL_REDUCE) -> None:
    """Raises PlanError unless the algorithm keeps the claim for p ranks.

    Every send meets its receive, in the same round: so with sends that do not block, no rank waits
    for ever. Nothing is put where the same round still sends from (what is to be added waits in a
    buffer of its own until the send is done). Nobody sends or adds what nobody has put there, no
    contribution is counted twice, and everybody ends with what the claim says, from one summation
    tree a chunk.
    """
    chunks, starts = algorithm.chunks(p), claim.starts(p)
    sums = _Sums(p)
    have = [[r if starts(r, c) else None for c in range(chunks)] for r in range(p)]
    for t, step in enumerate(algorithm.steps(np.arange(p), p)):
        rows = apart(step, p)
        _exist(t, rows, chunks)
        _match(t, rows)
        before = [list(row) for row in have]
        for r, s in enumerate(rows):
            if s.source >= 0:
                for c in range(*s.recv):
                    have[r][c] = _receive(t, r, c, s, before, sums)
    _compare(have, claim.ends(p), sums)


def _exist(t: int, rows: list[Step], chunks: int) -> None:
    """The ranks and the chunks that the steps name are there."""
    p = len(rows)
    for r, s in enumerate(rows):
        for does, way, peer, (lo, hi) in (
            ("sends", "to", s.to, s.send),
            ("waits for", "from", s.source, s.recv),
        ):
            strange, cut = peer >= p or peer == r, 0 <= lo < hi <= chunks
            if strange or (peer >= 0 and not cut):
                message = f"{does} chunks {_span((lo, hi))} {way} rank {peer}"
                wrong = f"which is no other of {p} ranks" if strange else f"of {chunks} in all"
                raise PlanError(f"round {t}: rank {r} {message}, {wrong}")


def _match(t: int, rows: list[Step]) -> None:
    """Each send has the receive that waits for it, and the other way round."""
    for r, s in enumerate(rows):
        if s.to >= 0 and (rows[s.to].source, rows[s.to].recv) != (r, s.send):
            raise PlanError(
                f"round {t}: rank {r} sends chunks {_span(s.send)} to rank {s.to}, "
                f"which waits for {_waits(rows[s.to])}"
            )
        if s.source >= 0 and rows[s.source].to != r:
            raise PlanError(
                f"round {t}: rank {r} waits for chunks {_span(s.recv)} from rank {s.source}, "
                "which sends it nothing"
            )
        if s.to >= 0 and s.source >= 0 and not s.reduce:
            shared = range(max(s.send[0], s.recv[0]), min(s.send[1], s.recv[1]))
            if len(shared):
                raise PlanError(
                    f"round {t}: rank {r} overwrites chunk {shared[0]} while sending it"
                )


def _span(range_: tuple[int, int]) -> str:
    lo, hi = range_
    return f"{lo}" if hi == lo + 1 else f"{lo}..{hi - 1}"


def _waits(s: Step) -> str:
    return f"chunks {_span(s.recv)} from rank {s.source}" if s.source >= 0 else "nobody"


def _receive(t: int, r: int, c: int, s: Step, before: list[list[int | None]], sums: _Sums) -> int:
    """What rank r holds of chunk c after the round."""
    theirs, mine = before[s.source][c], before[r][c]
    if theirs is None:
        raise PlanError(f"round {t}: rank {s.source} sends chunk {c}, which it does not have")
    if not s.reduce:
        return theirs
    if mine is None:
        raise PlanError(f"round {t}: rank {r} adds to chunk {c}, which it does not have")
    if twice := sums.both(theirs, mine):
        raise PlanError(
            f"round {t}: rank {r} adds the contribution of rank {min(twice)} to chunk {c} twice"
        )
    return sums.add(theirs, mine)


def _compare(have: list[list[int | None]], ends: Contributors, sums: _Sums) -> None:
    first: dict[int, tuple[int, int]] = {}  # chunk -> (rank, its expression)
    for r, row in enumerate(have):
        for c, held in enumerate(row):
            wanted = ends(r, c)
            if wanted is None:
                continue
            got = set() if held is None else ranks(sums.names[held])
            if held is None or got != wanted:
                missing = sorted(wanted - got) or sorted(got - wanted)
                raise PlanError(
                    f"at the end: rank {r} holds chunk {c} from ranks {sorted(got)}; "
                    f"wrong about {missing}"
                )
            other, theirs = first.setdefault(c, (r, held))
            if theirs != held:
                raise PlanError(
                    f"at the end: ranks {other} and {r} sum chunk {c} in different orders"
                )
