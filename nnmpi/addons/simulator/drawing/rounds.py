r"""Draws a collective algorithm as text and as an SVG picture: a row for each round, a box for each
rank, an arrow for each message.

             rank 0    rank 1
    start    [▒▒▒▒]    [▒▒▒▒]      a cell for each chunk, the darker the more contributions it has
                  \
                   \▶ 0            the chunks that an arrow carries stand beside its end
    round 0  [▒▒▒▒]    [▓▒▒▒]

A received chunk is added (a blue arrow) or replaces the rank's chunk (an orange arrow).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot

from nnmpi.addons.simulator.drawing.svg import IDLE, INK, QUIET, blend, box, page, text
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import Algorithm, Claim, Pieces, Step
from nnmpi.collectives.verify import Expressions, Held, rounds
from nnmpi.options.tables import columns

ALL_REDUCE, ALL_TO_ALL = Collective.ALL_REDUCE.claim, Collective.ALL_TO_ALL.claim

# ---- A plan as a text table: one row per round, one column per rank.
#
# The upper line of a row shows the messages, the lower one the chunks of each rank afterwards: for
# each chunk, how many ranks' contributions it contains.

MAX_RANKS = 16  # each has a column
DIGITS = "0123456789abcdefg"
LEGEND = """\
2>1  sends chunk 2 to rank 1     +3  adds what arrives to chunk 3     =3  replaces it
all  the whole buffer     0-2  chunks 0, 1, 2     024  chunks 0, 2, 4     -  nothing
Below, what each rank then holds: the number of contributions in each chunk (a is 10), or, in an
all-to-all, the rank that each chunk is from."""


def draw(algorithm: Algorithm, p: int, claim: Claim = ALL_REDUCE) -> str:
    """Returns a drawing of an algorithm for p ranks as text; raises PlanError if it does not
    compute the collective that `claim` describes."""
    check_ranks(p)
    chunks, sums = algorithm.chunks(p), Expressions(p)
    (_, start), *plan = rounds(algorithm, p, claim, sums)
    numbers = _numbers_held(claim, sums)

    def held(have: Held) -> list[str]:
        return ["".join("." if x is None else DIGITS[numbers[x]] for x in row) for row in have]

    rows = [["round", *(f"rank {r}" for r in range(p))], ["start", *held(start)]]
    for number, (steps, have) in zip(_numbers(plan), plan, strict=True):
        rows += [[number, *(_cell(s, chunks) for s in steps)], ["", *held(have)]]
    sums_until = [any(s.reduce and s.source >= 0 for s in steps) for steps, _ in plan]
    t = len(plan) - sums_until[::-1].index(True) if any(sums_until) else 0
    lines = columns(rows, str.ljust, str.ljust).split("\n")
    if 0 < t < len(plan):
        rule = "-- from here on, what arrives replaces a chunk --".ljust(max(map(len, lines)), "-")
        lines.insert(2 + 2 * t, rule)
    return "\n".join(lines)


def check_ranks(p: int) -> None:
    """Raises ValueError unless p ranks fit into a drawing."""
    if not 1 <= p <= MAX_RANKS:
        raise ValueError(f"a drawing has room for 1 to {MAX_RANKS} ranks, got {p}")


def _numbers(plan: Sequence[tuple[Sequence[Step], object]]) -> Iterator[str]:
    """Yields the number of each step's round, and of the link if ranks send on several: "2.0"."""
    number = 0
    for (step, *_), _ in plan:
        yield f"{number}.{step.port}" if step.ports > 1 else f"{number}"
        number += step.port == step.ports - 1


def _numbers_held(claim: Claim, sums: Expressions) -> list[int]:
    """Returns how many contributions each content is the sum of, or in an all-to-all, its own
    number."""
    is_moved = claim is ALL_TO_ALL
    return [x if is_moved else bits.bit_count() for x, bits in enumerate(sums.contributors)]


def _cell(s: Step, chunks: int) -> str:
    sent = f"{span(s.sends(chunks), chunks)}>{s.to}" if s.to >= 0 else ""
    received = f"{'+' if s.reduce else '='}{span(s.receives(chunks), chunks)}"
    return f"{sent} {received if s.source >= 0 else ''}".strip() or "-"


def span(messages: Iterable[Pieces], chunks: int) -> str:
    """Returns the chunks of messages as text: `3`, `0-1`, `024`, or `all`."""
    pieces = [piece for message in messages for piece in message]
    if pieces == [(0, chunks)]:
        return "all"
    if len(pieces) == 2 and pieces[0][1] == chunks + pieces[1][0]:  # past the last chunk
        pieces = [(pieces[0][0], pieces[1][1])]
    elif len(pieces) > 1 and chunks <= 10:
        return "".join(sorted(f"{c}" for piece in pieces for c in range(*piece)))
    return ",".join(f"{lo}" if hi == lo + 1 else f"{lo}-{hi - 1}" for lo, hi in sorted(pieces))


# ---- the picture

HEIGHT, FLIGHT, MARGIN, LINE = 22.0, 66.0, 66.0, 22.0  # in pixels
FEW, NARROW, WIDE = 4, 83.0, 112.0  # columns of up to FEW ranks are NARROW: two pictures fit
SPACE = 16.0  # between the boxes of two ranks
OFF, HEAD = 12.0, 9.0  # from the middle of a box to the ends of its arrows; length of an arrowhead
ADDED, REPLACED = "#2f6fd0", "#d5700a"
LIGHT, DARK = "#dce8fb", "#1f4e9c"  # a chunk with one contribution, and with all


def as_svg(plans: Mapping[str, Algorithm], p: int, claim: Claim = ALL_REDUCE) -> str:
    """Returns an SVG document of the algorithms for p ranks, by title; raises PlanError if one does
    not compute the collective that `claim` describes."""
    check_ranks(p)
    width, y, parts = MARGIN + max(p, FEW) * _column(p), 0.0, list[str]()
    for title, algorithm in plans.items():
        chunks, sums = algorithm.chunks(p), Expressions(p)
        (_, start), *plan = rounds(algorithm, p, claim, sums)
        parts += [text(16, y + 22, title, 18, weight="bold")]
        legend, y = _legend(p, y + 47, claim, width)
        parts += legend
        y += 37
        parts += [text(_centre(r, p), y - 14, f"rank {r}", 13, anchor="middle") for r in range(p)]
        numbers = _numbers_held(claim, sums)
        parts += _held("start", start, numbers, y)
        for number, (steps, have) in zip(_numbers(plan), plan, strict=True):
            parts += _messages(steps, chunks, y + HEIGHT)
            if steps[0].port == steps[0].ports - 1:  # messages of all ports are in flight at once
                y += HEIGHT + FLIGHT
                parts += _held(f"round {number.partition('.')[0]}", have, numbers, y)
        y += HEIGHT + 16
    return page(width, y, parts)


def _column(p: int) -> float:
    return NARROW if p <= FEW else WIDE


def _centre(rank: int, p: int) -> float:
    return MARGIN + (rank + 0.5) * _column(p) - SPACE / 4


def _legend(p: int, y: float, claim: Claim, width: float) -> tuple[list[str], float]:
    """Returns (the SVG of a legend of the colours, the y of its last line)."""
    x, parts, is_moved = 16.0, list[str](), claim is ALL_TO_ALL
    for colour, words in (
        (ADDED, "is added"),
        (REPLACED, "replaces a chunk"),
        (_shade(1, p), "a chunk of rank 0" if is_moved else "a chunk of one rank"),
        (_shade(p, p), f"of rank {p - 1}" if is_moved else "of all"),
        (IDLE, "nothing"),
    ):
        right = x + 30 + 6.6 * len(words)
        if right > width:
            x, y, right = 16.0, y + LINE, right - x + 16
        parts += [box(x, y - 7, 16, 14, colour), text(x + 22, y, words, 12)]
        x = right + 14
    return parts, y


def _shade(ranks: int, p: int) -> str:
    return blend(LIGHT, DARK, (ranks - 1) / max(p - 1, 1))


def _held(name: str, have: Held, numbers: Sequence[int], y: float) -> Iterator[str]:
    """Yields the SVG of a row with the chunks of each rank: have[r][c] is the content of rank r's
    chunk c, None if there is none; `numbers` label contents if there is room."""
    p = len(have)
    cells = _column(p) - SPACE
    yield text(MARGIN - 8, y + HEIGHT / 2, name, 13, QUIET, "end")
    for r, row in enumerate(have):
        width = cells / len(row)
        left = _centre(r, p) - cells / 2
        for c, x in enumerate(row):
            n = 0 if x is None else numbers[x]
            edge = ' stroke="#ffffff" stroke-width="1"'
            colour = IDLE if x is None else _shade(max(n, 1), p)
            yield box(left + c * width, y, width, HEIGHT, colour, edge)
            if x is not None and width >= 9:
                ink = "#ffffff" if 2 * n > p + 1 else INK
                yield text(left + (c + 0.5) * width, y + HEIGHT / 2, f"{n}", 11, ink, "middle")


def _messages(steps: Sequence[Step], chunks: int, y: float) -> Iterator[str]:
    """Yields the SVG of an arrow for each message of a round, with its chunks, from the right half
    of the sender's box to the left half of the receiver's."""
    p = len(steps)
    for r, s in enumerate(steps):
        if s.to < 0:
            continue
        colour = ADDED if s.reduce else REPLACED
        x, y0, end, bottom = _centre(r, p) + OFF, y + 2, _centre(s.to, p) - OFF, y + FLIGHT - 3
        dx, dy = end - x, bottom - y0
        back = HEAD / hypot(dx, dy)  # the arrowhead's share of the way
        bx, by = end - back * dx, bottom - back * dy
        wx, wy = -back * dy / 2, back * dx / 2
        line = f"M{x:.1f} {y0:.1f}L{bx:.1f} {by:.1f}"
        yield f'<path d="{line}" stroke="{colour}" stroke-width="1.6"/>'
        yield (
            f'<path d="M{end:.1f} {bottom:.1f}L{bx + wx:.1f} {by + wy:.1f}'
            f'L{bx - wx:.1f} {by - wy:.1f}z" fill="{colour}"/>'
        )
        side = 1 if dx > 0 else -1  # the side of the text; the arrow comes from the other side
        at = "start" if side > 0 else "end"
        label = span(s.sends(chunks), chunks)
        above = 9 + 12 * s.port
        yield text(end + 6 * side, bottom - above, label, 12, colour, at, "bold")
