"""A plan as a text table: one row per round, one column per rank.

The upper line of a row shows the messages, the lower one what each rank holds afterwards: for each
chunk, how many ranks' contributions it contains.
"""

from itertools import pairwise

from nnmpi.collectives.step import Algorithm, Step
from nnmpi.collectives.verify import ALL_REDUCE, Claim, Expressions, rounds
from nnmpi.sim.drawing.tables import columns

MAX_RANKS = 16  # one column each
DIGITS = ".123456789abcdefg"  # the number of contributions in a chunk
LEGEND = """\
2>1  sends chunk 2 to rank 1     +3  adds what arrives to chunk 3     =3  replaces it
all  the whole buffer     -  nothing
Below, what each rank then holds: the number of contributions in each chunk (a is 10)."""


def draw(algorithm: Algorithm, p: int, claim: Claim = ALL_REDUCE) -> str:
    """Draw the plan for p ranks; raises PlanError if it does not satisfy the claim."""
    check_ranks(p)
    chunks, sums = algorithm.chunks(p), Expressions(p)
    (_, start), *plan = rounds(algorithm, p, claim, sums)
    rows = [["round", *(f"rank {r}" for r in range(p))], ["start", *_held(start, sums)]]
    for t, (steps, have) in enumerate(plan):
        rows += [[f"{t}", *(_cell(s, chunks) for s in steps)], ["", *_held(have, sums)]]
    reduces = [steps[0].reduce for steps, _ in plan]
    boundaries = [t for t, (before, now) in enumerate(pairwise(reduces), 1) if before and not now]
    return _table(rows, [2 + 2 * t for t in boundaries])


def check_ranks(p: int) -> None:
    """Raises ValueError unless there is room for so many ranks."""
    if not 1 <= p <= MAX_RANKS:
        raise ValueError(f"a drawing has room for 1 to {MAX_RANKS} ranks, got {p}")


def _held(have: list[list[int | None]], sums: Expressions) -> list[str]:
    counts = [bits.bit_count() for bits in sums.contributors]
    return ["".join(DIGITS[0 if x is None else counts[x]] for x in row) for row in have]


def _cell(s: Step, chunks: int) -> str:
    sent = f"{span(s.send, chunks)}>{s.to}" if s.to >= 0 else ""
    received = f"{'+' if s.reduce else '='}{span(s.recv, chunks)}" if s.source >= 0 else ""
    return f"{sent} {received}".strip() or "-"


def span(range_: tuple[int, int], chunks: int) -> str:
    """The chunks of a message: `3`, `0-1` or `all`."""
    lo, hi = range_
    if (lo, hi) == (0, chunks):
        return "all"
    return f"{lo}" if hi == lo + 1 else f"{lo}-{hi - 1}"


def _table(rows: list[list[str]], boundaries: list[int]) -> str:
    """Align the columns; insert a rule before the rows at which reduction ends."""
    lines = columns(rows, str.ljust, str.ljust).split("\n")
    rule = "-- from here on, what arrives replaces a chunk --".ljust(max(map(len, lines)), "-")
    for i in reversed(boundaries):
        lines.insert(i, rule)
    return "\n".join(lines)
