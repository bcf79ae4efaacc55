"""The rounds of a plan as text: one row a round, one column a rank.

The upper line of a row says what goes where, the lower one what every rank holds after it: for each
chunk, how many ranks' parts are in it.
"""

import numpy as np

from nnmpi.collectives.step import Algorithm, Step, apart
from nnmpi.collectives.verify import ALL_REDUCE, Claim, verify

MOST_RANKS = 16  # a column each
DIGITS = ".123456789abcdefg"  # how many parts are in a chunk
LEGEND = """\
2>1  sends chunk 2 to rank 1     +3  adds what arrives to chunk 3     =3  puts it there
all  the whole buffer     -  nothing
Below, what each rank then holds: for each chunk, how many ranks' parts are in it (a for 10)."""

Row = list[str]


def draw(algorithm: Algorithm, p: int, claim: Claim = ALL_REDUCE) -> str:
    """The plan for p ranks that start with what the claim says, if it keeps the claim."""
    if not 1 <= p <= MOST_RANKS:
        raise ValueError(f"{p} ranks do not fit into a drawing; take 1 to {MOST_RANKS}")
    verify(algorithm, p, claim)
    chunks, starts = algorithm.chunks(p), claim.starts(p)
    have = [[1 << r if starts(r, c) else 0 for c in range(chunks)] for r in range(p)]
    rows = [["round", *(f"rank {r}" for r in range(p))], ["start", *_held(have)]]
    plan = list(algorithm.steps(np.arange(p), p))
    for t, step in enumerate(plan):
        steps = apart(step, p)
        have = [_after(have, r, s) for r, s in enumerate(steps)]
        rows += [[f"{t}", *(_cell(s, chunks) for s in steps)], ["", *_held(have)]]
    turns = [t for t in range(1, len(plan)) if plan[t - 1].reduce and not plan[t].reduce]
    return _lay_out(rows, [2 + 2 * t for t in turns])


def _after(have: list[list[int]], r: int, s: Step) -> list[int]:
    """Whose parts are in each chunk of rank r after its step, a bit a rank."""
    mine = list(have[r])
    if s.source >= 0:
        for c in range(*s.recv):
            mine[c] = have[s.source][c] | (mine[c] if s.reduce else 0)
    return mine


def _held(have: list[list[int]]) -> list[str]:
    return ["".join(DIGITS[parts.bit_count()] for parts in row) for row in have]


def _cell(s: Step, chunks: int) -> str:
    out = f"{_span(s.send, chunks)}>{s.to}" if s.to >= 0 else ""
    into = f"{'+' if s.reduce else '='}{_span(s.recv, chunks)}" if s.source >= 0 else ""
    return f"{out} {into}".strip() or "-"


def _span(range_: tuple[int, int], chunks: int) -> str:
    lo, hi = range_
    if (lo, hi) == (0, chunks):
        return "all"
    return f"{lo}" if hi == lo + 1 else f"{lo}-{hi - 1}"


def _lay_out(rows: list[Row], turns: list[int]) -> str:
    """Columns as wide as their widest cell, and a line before the rows where adding ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    rule = "-- from here on what arrives is put, not added --"
    for i in reversed(turns):
        lines.insert(i, rule.ljust(sum(widths) + 2 * len(widths) - 2, "-"))
    return "\n".join(lines)
