"""Proves that a collective algorithm is correct by executing it symbolically.

Each rank holds an expression for each chunk: one rank's contribution, or the sum of two
expressions. Expressions are numbered, and a sum is an unordered pair of numbers. So two expressions
have the same number exactly if they are the same summation tree up to commuting operands, and then
floating point gives identical bits.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS, Collective
from nnmpi.collectives.step import Algorithm, Claim, Pieces, PlanError, Step, per_rank
from nnmpi.options import user_code
from nnmpi.options.quoting import quoted

MANY = range(1, 18)  # numbers of ranks for which an algorithm is proved before it is shown
MOST_ROUNDS = 1 << 12
"""Most rounds or chunks, in addition to 4 a rank: to prove more would take too long."""


Held: TypeAlias = list[list[int | None]]
"""The expression of each chunk of each rank, None where it has none."""
Busy: TypeAlias = tuple[set[int], set[int]]
"""The chunks that a rank sends, and that it receives, on earlier ports of a round."""


class Expressions:
    """Numbers of symbolic sums: 0..p-1 are the ranks' own, larger ones add two."""

    def __init__(self, p: int) -> None:
        self.contributors = [1 << r for r in range(p)]  # of each expression, one bit per rank
        self._known: dict[tuple[int, int], int] = {}

    def add(self, a: int, b: int) -> int:
        pair = (min(a, b), max(a, b))
        if pair not in self._known:
            self._known[pair] = len(self.contributors)
            self.contributors.append(self.contributors[a] | self.contributors[b])
        return self._known[pair]


def _ranks(bits: int) -> set[int]:
    return {r for r in range(bits.bit_length()) if bits >> r & 1}


def verify(algorithm: Algorithm, p: int, claim: Claim = Collective.ALL_REDUCE.claim) -> None:
    """Raises PlanError unless the algorithm satisfies the claim for p ranks.

    - Each send has a matching receive in the same round: with non-blocking sends, no deadlock.
    - No rank overwrites a chunk that it sends in the same round. (Chunks that are added are
      received into a separate buffer, and added after the send.)
    - No rank sends or adds to a chunk that it does not hold, and no contribution counts twice.
    - With several ports, no rank sends or replaces a chunk that another port receives in the same
      round, and none replaces a chunk that another port sends.
    - All ranks end with what the claim says, equal sums of a chunk from the same summation tree.
    """
    for _ in rounds(algorithm, p, claim, Expressions(p)):
        pass


def rounds(
    algorithm: Algorithm, p: int, claim: Claim, sums: Expressions
) -> Iterator[tuple[list[Step], Held]]:
    """Executes an algorithm symbolically: yields, for each round, the steps of all ranks and the
    number of the expression that each rank then holds for each chunk; first the start, without
    steps. Raises PlanError if a step is wrong, or if the end is not what `claim` says."""
    chunks = check_sizes(algorithm, p)
    have = [[r if claim.starts(r, c) else None for c in range(chunks)] for r in range(p)]
    yield [], have
    ports_left, busy = 0, list[Busy]()  # steps that the round still has; chunks of those before
    for t, step in enumerate(algorithm.steps(np.arange(p), p)):
        rows = _rows(t, step, p)
        _check_bounds(t, rows, chunks)
        _check_matching(t, rows, chunks)
        busy = busy if ports_left else [(set(), set()) for _ in rows]
        ports_left = _check_ports(t, rows, ports_left, busy, chunks)
        old, have = have, [list(row) for row in have]
        for r, s in enumerate(rows):
            for c in _each(s.receives(chunks)):
                have[r][c] = _receive(t, r, c, s, old, sums)
        yield rows, have
    if ports_left:
        raise PlanError(f"at the end: the last round lacks {ports_left} of its steps")
    _check_end(have, claim, sums)


def check_sizes(algorithm: Algorithm, p: int) -> int:
    """Returns the number of chunks; raises PlanError if there are too many rounds or chunks."""
    _size("rounds", algorithm.rounds, p, 0)
    return _size("chunks", algorithm.chunks, p, 1)


def _size(name: str, f: Callable[[int], int], p: int, least: int) -> int:
    """Calls f, the function `rounds` or `chunks` of an algorithm (`name`), for p ranks; returns the
    number. Raises PlanError if it is not an integer of at least `least`, or is too large."""
    try:
        n = f(p)
    except Exception as error:
        raise PlanError(f"{name}(p) ends with {user_code.reason_of(error)}") from error
    most = MOST_ROUNDS + 4 * p
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not least <= n <= most:
        raise PlanError(f"{name}(p) is {quoted(n)}, not a whole number from {least} to {most:,}")
    return int(n)


def _rows(t: int, step: Step, p: int) -> list[Step]:
    """The steps of all ranks in round t, one per rank, checked to be whole numbers."""
    try:
        rows = per_rank(step, p)
    except (TypeError, ValueError) as error:
        form = "a peer must be one number, or one per rank, and a range two of them, (lo, hi)"
        raise PlanError(f"round {t}: {form}: {error}") from None
    for name in ("port", "ports", "block", "stride"):
        if not isinstance(value := getattr(step, name), int | np.integer):
            raise PlanError(f"round {t}: {name} {quoted(value)} is not one integer for all ranks")
    if not 1 <= step.block <= step.stride:
        raise PlanError(f"round {t}: block {step.block} is not from 1 to stride {step.stride}")
    for name in ("reduce", "swap"):
        if not isinstance(value := getattr(step, name), bool | np.bool_):
            raise PlanError(f"round {t}: {name} is {quoted(value)}; use one bool for all ranks")
    for r, s in enumerate(rows):
        fields = {"to": (s.to,), "send": s.send, "source": (s.source,), "recv": s.recv}
        for name, values in fields.items():
            if any(type(value) is not int for value in values):
                wrong = f"{name} is {', '.join(map(repr, values))}, not an integer; divide by //"
                raise PlanError(f"round {t}: rank {r}: {wrong}")
    return rows


def _check_bounds(t: int, rows: list[Step], chunks: int) -> None:
    """Raises PlanError unless all ranks and chunks that the steps `rows` of round t name exist."""
    p = len(rows)
    for r, s in enumerate(rows):
        for does, way, peer, (lo, hi) in (
            ("sends", "to", s.to, s.send),
            ("waits for", "from", s.source, s.recv),
        ):
            fits = 0 <= lo < min(hi, chunks) and hi <= lo + chunks
            wrong = "" if peer < 0 or fits else f"not a range of {chunks} chunks"
            if peer >= p or peer == r:
                wrong = f"which is not another one of the {p} ranks"
            if wrong:
                message = f"{does} chunks {_span((lo, hi))} {way} rank {peer}"
                raise PlanError(f"round {t}: rank {r} {message}, {wrong}")


def _each(messages: tuple[Pieces, ...]) -> list[int]:
    """Returns the chunk numbers in the given messages, in order."""
    return [c for pieces in messages for piece in pieces for c in range(*piece)]


def _check_matching(t: int, rows: list[Step], chunks: int) -> None:
    """Raises PlanError unless, in round t, each send has its receive and each receive its send, and
    no rank overwrites a chunk while it sends it. `rows` are the steps of all ranks."""
    for r, s in enumerate(rows):
        if s.to >= 0 and (rows[s.to].source, rows[s.to].recv) != (r, s.send):
            raise PlanError(
                f"round {t}: rank {r} sends chunks {_span(s.send)} to rank {s.to}, "
                f"which waits for {_expected(rows[s.to])}"
            )
        if s.source >= 0 and rows[s.source].to != r:
            raise PlanError(
                f"round {t}: rank {r} waits for chunks {_span(s.recv)} from rank {s.source}, "
                "which sends it nothing"
            )
        shared = {*_each(s.sends(chunks))} & {*_each(s.receives(chunks))}
        if shared and not s.reduce and not s.swap:
            chunk = min(shared)
            raise PlanError(f"round {t}: rank {r} overwrites chunk {chunk} while sending it")


def _check_ports(t: int, rows: list[Step], left: int, busy: list[Busy], chunks: int) -> int:
    """Raises PlanError unless a step may follow the earlier ones of round t; returns how many are
    due.

    The step must have the next port. It may not send chunks that arrive by an earlier step of the
    round, nor replace chunks that an earlier one sends or receives.

    rows   this step of each rank
    left   how many steps of the round are due, this one included; 0 if it begins a round
    busy   the chunks that each rank sends and receives in the round; those of this step are added
    """
    port, ports = rows[0].port, rows[0].ports
    if not 0 <= port < ports or (left != ports - port if left else port):
        raise PlanError(f"round {t}: port {port} of {ports} comes when {left} steps are left")
    for r, (s, (out, into)) in enumerate(zip(rows, busy, strict=True)):
        sent, received = _each(s.sends(chunks)), _each(s.receives(chunks))
        if not into.isdisjoint(sent):
            sends = f"rank {r} sends chunks {_span(s.send)}"
            raise PlanError(f"round {t}: {sends}, which arrive on another port at the same time")
        if not s.reduce and not (out | into).isdisjoint(received):
            replaces = f"rank {r} replaces chunks {_span(s.recv)}"
            raise PlanError(f"round {t}: {replaces}, which another port uses at the same time")
        out.update(sent)
        into.update(received)
    return ports - port - 1


def _span(range_: tuple[int, int]) -> str:
    lo, hi = range_
    return f"{lo}" if hi == lo + 1 else f"{lo}..{hi - 1}"


def _expected(s: Step) -> str:
    return f"chunks {_span(s.recv)} from rank {s.source}" if s.source >= 0 else "nothing"


def _receive(t: int, r: int, c: int, s: Step, old: Held, sums: Expressions) -> int:
    """Returns the number of the expression that rank r holds for chunk c after it has received it
    in round t by step s: the one that arrives, or its sum with the old one."""
    theirs, mine = old[s.source][c], old[r][c]
    if theirs is None:
        raise PlanError(f"round {t}: rank {s.source} sends chunk {c}, which it does not have")
    if not s.reduce:
        return theirs
    if mine is None:
        raise PlanError(f"round {t}: rank {r} adds to chunk {c}, which it does not have")
    if twice := _ranks(sums.contributors[theirs] & sums.contributors[mine]):
        raise PlanError(
            f"round {t}: rank {r} adds the contribution of rank {min(twice)} to chunk {c} twice"
        )
    return sums.add(theirs, mine)


def _check_end(have: Held, claim: Claim, sums: Expressions) -> None:
    """Raises PlanError unless ranks hold what is claimed, by equal summation trees."""
    first: dict[tuple[int, frozenset[int]], tuple[int, int]] = {}  # -> (rank, its expression)
    for r, row in enumerate(have):
        for c, held in enumerate(row):
            wanted = claim.ends(r, c, len(have))
            if wanted is None:
                continue
            got = set() if held is None else _ranks(sums.contributors[held])
            if held is None or got != wanted:
                raise PlanError(f"at the end: rank {r}, chunk {c}: {_difference(got, wanted)}")
            other, theirs = first.setdefault((c, frozenset(wanted)), (r, held))
            if theirs != held:
                raise PlanError(
                    f"at the end: ranks {other} and {r} sum chunk {c} in different orders; let one "
                    "rank add it up, and send the sum to the others"
                )


def _difference(got: set[int], wanted: set[int]) -> str:
    """Describes contributions: `the contribution of rank 3 is missing`, or `... is not wanted`."""
    wrong, fault = (wanted - got, "missing") if wanted - got else (got - wanted, "not wanted")
    if len(wrong) == 1:
        return f"the contribution of rank {min(wrong)} is {fault}"
    return f"the contributions of ranks {', '.join(map(str, sorted(wrong)))} are {fault}"


# ---- algorithms by name: those of nnmpi, and yours as package.module:NAME


def find(name: str) -> Algorithm:
    """The algorithm with this name in ALGORITHMS, or the user's at `package.module:NAME`."""
    if not user_code.is_named(name):
        return ALGORITHMS[name]
    algorithm = user_code.imported(name, "algorithm")
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"algorithm {name!r} is of type {type(algorithm).__name__}; it must be an Algorithm "
            "(rounds, chunks, at) of nnmpi.collectives"
        )
    return algorithm


def proven(
    name: str, sizes: Iterable[int], collective: Collective = Collective.ALL_REDUCE
) -> Algorithm:
    """Returns the named algorithm, after proving it for each number of ranks in `sizes`; raises
    PlanError if the proof fails. A single rank is proved last: other numbers give clearer errors,
    for example for an `at` that branches."""
    algorithm = find(name)
    for p in sorted(sizes, key=lambda p: (p == 1, p)):
        with naming(name, collective.text, p):
            verify(algorithm, p, collective.claim)
    return algorithm


@contextmanager
def naming(name: str, operation: str, p: int) -> Iterator[None]:
    """A context that turns errors of a user's algorithm into a PlanError with its name, operation
    and ranks."""
    try:
        yield
    except (IndexError, TypeError, ValueError) as error:  # PlanError is a ValueError
        raise PlanError(
            f"algorithm {name!r} is no {operation} of {p} rank{'s' * (p > 1)}: {error}"
        ) from None
