"""Timelines: what ranks do at which time, simulated or measured; also drawn as text.

    rank 0  F0 F1 ......B0--- F2 B1--- ...B2---
    rank 1  ...F0 B0--- F1 B1--- F2 B2--- ...

A kind is any string: kinds of operations (F, B, I, W, ...), and others in traces of real runs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

WIDTH = 120  # columns of a drawing as text
IDLE = "."
COMPUTE = ("F", "B", "I", "W", "STEP")
BACKGROUND = "background"
GAPS = ("wait", "communicate")
"""Kinds of spans between computations; pictures number only computations."""


class Span(NamedTuple):
    """One activity of a rank, such as a pass, from start to end."""

    rank: int
    kind: str
    micro: int  # micro-batch, -1: none
    stage: int
    start: float
    end: float


class Level(NamedTuple):
    """The value of a quantity, such as the memory in use, from start to end; drawn as an area."""

    start: float
    end: float
    value: float


class Timeline(NamedTuple):
    """The activities of several ranks over time: spans on one clock that starts at 0; later spans
    are drawn over earlier ones, and those in the background below the row of the rank.

    names    the names of the rows, if they are not ranks
    levels   for rows that are drawn as areas, their levels
    """

    spans: tuple[Span, ...]
    ranks: int
    title: str = ""
    unit: str = ""  # of time: "ms"; empty if only ratios matter
    names: Sequence[str] = ()
    levels: Mapping[int, Sequence[Level]] = {}

    @property
    def end(self) -> float:
        """The time at which the last span ends."""
        return max((span.end for span in self.spans), default=0)


class Style(NamedTuple):
    """The name, letter and colour of a kind of span in drawings."""

    name: str
    letter: str  # in text, followed by the micro-batch
    colour: str  # in pictures


STYLES = {
    "F": Style("forward", "F", "#6ea0f0"),
    "B": Style("backward", "B", "#58b57a"),
    "I": Style("gradient of the input", "I", "#9bd6ae"),
    "W": Style("gradient of the weights", "W", "#f3b54f"),
    "RECOMPUTE": Style("forward again", "R", "#b3ccf8"),
    "SUM": Style("sum of gradients", "G", "#b59ae0"),
    "GATHER": Style("gather of values", "V", "#d9c2f0"),
    "APPLY": Style("update", "U", "#3b4252"),
    "WRITE": Style("write to disk", "D", "#8d6e5a"),
    "READ": Style("read from disk", "D", "#bfa48f"),
    "STEP": Style("step of a worker", "S", "#6ea0f0"),
    "send": Style("send", "s", "#e58fb5"),
    "receive": Style("receive", "r", "#f0b7cf"),
    "communicate": Style("communication", "c", "#e58fb5"),
    BACKGROUND: Style("communication in the background", "b", "#c2447f"),
    "wait": Style("wait", "~", "#f0cfc9"),
}


def style(kind: str) -> Style:
    """Returns the style of a kind; kinds that are not in the table STYLES are grey."""
    return STYLES.get(kind, Style(kind, kind[:1] or "?", "#c4c8cf"))


def kinds(timelines: Iterable[Timeline]) -> list[str]:
    """Returns the kinds of spans that occur, in the order of STYLES."""
    seen = {span.kind for timeline in timelines for span in timeline.spans}
    return [k for k in STYLES if k in seen] + sorted(seen.difference(STYLES))


def shortest(timelines: Iterable[Timeline]) -> float:
    """Returns a duration that drawings have to keep readable: the smallest of the medians of each
    kind of computation in each timeline."""
    durations = defaultdict(list)
    for t in timelines:
        for span in t.spans:
            if span.end > span.start:
                durations[t.title, span.kind].append(span.end - span.start)
    compute = [d for (_, kind), d in durations.items() if kind in COMPUTE]
    return min(map(median, compute or durations.values()), default=1)


def draw(timelines: Sequence[Timeline], width: int = WIDTH) -> str:
    """Returns timelines as text on one scale, with a legend of the letters."""
    timelines = [
        t._replace(spans=tuple(s for s in t.spans if s.kind != BACKGROUND)) for t in timelines
    ]
    margin = len(f"rank {max(t.ranks for t in timelines) - 1}  ")
    scale = _scale(timelines, width - margin)
    has_whole_cells = shortest(timelines) * scale >= 1
    timelines = [t._replace(spans=tuple(s for s in t.spans if s.end > s.start)) for t in timelines]
    parts = []
    for timeline in timelines:
        rows = _rows(timeline, scale, _cell if has_whole_cells else _fill)
        text = [f"rank {r}".ljust(margin) + row.rstrip() for r, row in enumerate(rows)]
        parts.append("\n".join([timeline.title, *text] if timeline.title else text))
    legend = [_meaning(kind, has_whole_cells) for kind in kinds(timelines)]
    if has_whole_cells and any(_is_cut(s, scale) for t in timelines for s in t.spans):
        legend.append("a number that does not fit: its last digits")
    return "\n\n".join([*parts, "   ".join([*legend, f"{IDLE} idle"])])


def _scale(timelines: Sequence[Timeline], columns: int) -> float:
    """Returns how many columns of text a unit of time takes, such that the shortest kind of
    computation is 1 to 4 columns wide, or narrower if `columns` are not enough."""
    least, end = shortest(timelines), max(timeline.end for timeline in timelines)
    room = columns * least / end if end else 1
    return min(int(room), 4) / least if room >= 1 else columns / end


def _rows(timeline: Timeline, scale: float, cell: Callable[[Span, int], str]) -> list[str]:
    """Returns each rank's row of text, of `cell(span, width)`."""
    width = round(timeline.end * scale)
    rows = [[IDLE] * width for _ in range(timeline.ranks)]
    for span in timeline.spans:
        a, b = round(span.start * scale), round(span.end * scale)
        rows[span.rank][a:b] = cell(span, b - a)
    return ["".join(row) for row in rows]


def _cell(span: Span, width: int) -> str:
    """Returns a span's text for a width: `B12-- ` in six columns, `B2` in two."""
    if width < 2:
        return _fill(span, width)
    letter, number = style(span.kind).letter, str(span.micro) if span.micro >= 0 else ""
    label = letter + number[-(width - 1) :]
    gap = width > 2 and len(label) < width
    return label.ljust(width - gap, "-") + " " * gap


def _is_cut(span: Span, scale: float) -> bool:
    """Returns True if a drawing has room only for the last digits of the span's micro-batch."""
    width = round(span.end * scale) - round(span.start * scale)
    return span.micro >= 10 and 2 <= width <= len(str(span.micro))


def _fill(span: Span, width: int) -> str:
    """Returns a span without room for letter and number as one repeated character: the last digit
    of the micro-batch for a forward pass, otherwise the letter in lower case."""
    letter = style(span.kind).letter
    return (str(span.micro)[-1] if letter == "F" else letter.lower()) * width


def _meaning(kind: str, has_whole_cells: bool) -> str:
    name, letter, _ = style(kind)
    return f"{letter if has_whole_cells else '0-9' if letter == 'F' else letter.lower()} {name}"
