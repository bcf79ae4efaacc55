"""Draws timelines as SVG: a row for each rank, a box for each span."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from textwrap import wrap
from typing import NamedTuple

from nnmpi.addons.simulator.drawing.timeline import (
    BACKGROUND,
    GAPS,
    Level,
    Span,
    Timeline,
    kinds,
    shortest,
    style,
)

ROW, GAP, MARGIN, HEADING = 30, 6, 84, 38  # in pixels
PLOT = 620  # the width: a wider picture would have labels too small for a phone
SHORTEST, NARROW = 8, 480  # least width of the shortest computation and of the plot: fit a phone
LINE = 3  # width of a span without duration
SMALLEST = 9.0  # font size of a label
HIGH = 0.72  # height of a digit over its font size
NARROWEST = HIGH * SMALLEST + 1  # width of a box with room for a number turned by 90 degrees
MOST_BANDS = 6  # for a timeline that is too long for one row a rank
BOLD = 0.66  # mean width of a bold letter over its font size, of the widest of the fonts
INK, QUIET, PAPER, IDLE, AREA = "#1f2430", "#667085", "#ffffff", "#eef0f3", "#a9b4c4"
FONT = "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\""
DARK = "@media (prefers-color-scheme: dark) { .nnmpi { filter: invert(.88) hue-rotate(180deg) } }"
"""A style that makes pictures dark on dark pages, in the same hues; limited to class `nnmpi`."""


class Band(NamedTuple):
    """A section of a long time axis, start to end, `width` pixels wide."""

    start: float
    end: float
    width: float

    @property
    def scale(self) -> float:
        """The number of pixels per unit of time in this section of the time axis."""
        return self.width / (self.end - self.start)

    def x(self, time: float) -> float:
        """Returns the x coordinate of a time; a time outside the band is moved to its border."""
        return MARGIN + (min(max(time, self.start), self.end) - self.start) * self.scale


def svg(timelines: Sequence[Timeline], title: str = "", until: float | None = None) -> str:
    """Returns an SVG document of timelines one below the other, with a time axis and a legend.

    Later stages of a rank have a darker shade. Time without a span is idle and has the colour of
    the row. Time after `until` is cut off, so that one slow timeline does not squeeze the others.
    """
    end = until or max(timeline.end for timeline in timelines) or 1
    y, parts = 16.0, list[str]()
    bands = _bands(timelines, end)
    if title:
        lines, y = heading(title, y + 16, MARGIN + bands[0].width)
        parts += lines
    for band in bands:
        for timeline in timelines:
            if band.start and timeline.end <= band.start:
                continue
            parts += _timeline(timeline, y, band, end)
            y += (HEADING if timeline.title else 0) + timeline.ranks * (ROW + GAP) + 12
        parts += _axis(y, band, timelines[0].unit)
        y += 52
    width = MARGIN + bands[0].width
    legend, y = _legend(y, timelines, width)
    return page(width + 24, y + 24, [*parts, *legend])


def _bands(timelines: Sequence[Timeline], end: float) -> list[Band]:
    """Divides the time until `end` into sections, in which the shortest computation is wide enough
    for its number; returns one section if there would be too many."""
    least = shortest(timelines)
    count = ceil(end / least / floor(PLOT / NARROWEST) - 1e-9)
    if not 1 < count <= MOST_BANDS:
        return [Band(0, end, min(max(end / least * SHORTEST, NARROW), PLOT))]
    each = ceil(end / least / count - 1e-9) * least
    return [Band(i * each, (i + 1) * each, PLOT) for i in range(count)]


def page(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns an SVG of this size, scaled down in a narrower page."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" class="nnmpi" style="max-width:100%;height:auto" {FONT}>'
        f"<style>{DARK}</style>"
    )
    return "\n".join([head, box(0, 0, width, height, PAPER), *parts, "</svg>\n"])


def heading(title: str, y: float, width: float, size: float = 16) -> tuple[list[str], float]:
    """Returns the SVG of a title on as many lines of this width as needed, and the y below."""
    lines = wrap(title, max(1, int(width / (BOLD * size))))
    step = 1.4 * size
    texts = [text(16, y + i * step, line, size, weight="bold") for i, line in enumerate(lines)]
    return texts, y + len(lines) * step


def _timeline(timeline: Timeline, y: float, band: Band, end: float) -> Iterator[str]:
    """Yields the SVG of one timeline in one section of the time axis, with heading and rows."""
    if timeline.title:
        size = min(16, (MARGIN + band.width) / (BOLD * len(timeline.title)))  # on one line
        yield text(16, y + 24, timeline.title, size, weight="bold")
    last = timeline.end
    if last > end:
        more = f"goes on until {last:g} \u2192"
        yield text(MARGIN + band.width, y + 24, more, 14, QUIET, "end")
    y += HEADING if timeline.title else 0
    for r in range(timeline.ranks):
        top = y + r * (ROW + GAP)
        name = timeline.names[r] if timeline.names else f"rank {r}"
        size = min(14, (MARGIN - 16) / (0.5 * len(name)))
        yield text(MARGIN - 10, top + ROW / 2, name, size, anchor="end")
        yield box(MARGIN, top, band.x(last) - MARGIN, ROW, IDLE)
        yield from _levels(timeline.levels.get(r, ()), top, band)
    for span in sorted(timeline.spans, key=lambda span: span.start == span.end):
        takes_none = band.start <= span.start == span.end <= band.end
        if takes_none or (band.start < span.end and span.start < band.end):
            top = y + span.rank * (ROW + GAP)
            yield from _span(span, max(span.stage // timeline.ranks, 0), top, band)


def _levels(levels: Sequence[Level], top: float, band: Band) -> Iterator[str]:
    """Yields the SVG of a row of levels, drawn as areas; the highest level fills the row."""
    most = max((level.value for level in levels), default=0)
    for level in levels:
        if band.start < level.end and level.start < band.end and level.value:
            height = ROW * level.value / most
            x, until = band.x(level.start), band.x(level.end)
            yield box(x, top + ROW - height, until - x, height, AREA)


def _span(span: Span, chunk: int, top: float, band: Band) -> Iterator[str]:
    """Yields the SVG of a span: a box with its micro-batch, if that fits, or a line if it has no
    duration. `chunk` is the number of earlier stages of the rank, which sets the shade."""
    x, width = band.x(span.start), band.x(span.end) - band.x(span.start)
    if span.start == span.end:
        yield box(x - LINE / 2, top, LINE, ROW, style(span.kind).colour)
        return
    name, number = style(span.kind).name, str(span.micro) if span.micro >= 0 else ""
    stage = f", stage {span.stage}" if span.stage >= 0 else ""
    details = f"{name} {number}{stage}, {span.start:g} to {span.end:g}"
    border = ' stroke="#ffffff" stroke-width="1"' if width > 4 else ""
    shade = blend("#000000", style(span.kind).colour, 0.82**chunk)
    at = (x, top + ROW, width, GAP - 2) if span.kind == BACKGROUND else (x, top, width, ROW)
    yield f"<g><title>{escape(details)}</title>{box(*at, shade, border)}"
    if number and width >= NARROWEST and span.kind not in GAPS:
        yield _number(number, x + width / 2, top + ROW / 2, width, INK if chunk < 2 else PAPER)
    yield "</g>"


def _number(number: str, x: float, y: float, width: float, colour: str) -> str:
    """Returns the SVG of a number in a box, turned if that is too narrow."""
    size = min(14.0, (width - 3) / (0.6 * len(number)))
    if size >= SMALLEST:
        return text(x, y, number, size, colour, "middle")
    turned = f' transform="rotate(-90 {x:.2f} {y:g})"'
    return text(x, y, number, min(11.0, (width - 1) / HIGH), colour, "middle", more=turned)


def _axis(y: float, band: Band, unit: str) -> Iterator[str]:
    """Yields the SVG of the time axis below a section (band), with ticks at round numbers."""
    yield f'<path d="M{MARGIN} {y:g}h{band.width:g}" stroke="{QUIET}"/>'
    step = _round_step(90 / band.scale)
    for k in range(ceil(band.start / step - 1e-9), floor(band.end / step + 1e-9) + 1):
        x = band.x(k * step)
        yield f'<path d="M{x:.2f} {y:g}v6" stroke="{QUIET}"/>'
        yield text(x, y + 15, f"{k * step:g}", 12, QUIET, "middle")
    yield text(MARGIN - 10, y + 15, f"time [{unit}]" if unit else "time", 12, QUIET, "end")


def _round_step(least: float) -> float:
    """Returns the smallest of ..., 1, 2, 5, 10, 20, ... that is at least `least`."""
    power = 10.0 ** floor(log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least * (1 - 1e-9))


def _legend(y: float, timelines: Sequence[Timeline], right: float) -> tuple[list[str], float]:
    """Returns the SVG of a legend of the kinds of spans that occur, and the y of its last line."""
    x, parts = float(MARGIN), list[str]()
    entries = [(style(kind).name, style(kind).colour) for kind in kinds(timelines)]
    entries.append(("idle", IDLE))
    if any(span.stage >= t.ranks for t in timelines for span in t.spans):
        entries.append(("second shade: a later stage of the rank", "#9096a1"))
    for name, colour in entries:
        width = 25 + 7.2 * len(name) + 26
        if x + width > right + 24 and x > MARGIN:
            x, y = float(MARGIN), y + 26
        parts += [box(x, y - 9, 18, 18, colour, f' stroke="{QUIET}" stroke-width="0.5"')]
        parts += [text(x + 25, y, name, 14)]
        x += width
    return parts, y


def blend(a: str, b: str, part: float) -> str:
    """Returns a mixture of two colours: a if `part` is 0, b if it is 1."""
    pairs = ((int(a[i : i + 2], 16), int(b[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(x + (y - x) * part):02x}" for x, y in pairs)


def box(x: float, y: float, width: float, height: float, colour: str, more: str = "") -> str:
    """Returns an SVG rectangle; `more` holds other attributes."""
    size = f'width="{width:.2f}" height="{height:g}"'
    return f'<rect x="{x:.2f}" y="{y:g}" {size} fill="{colour}"{more}/>'


def text(
    x: float, y: float, words: str, size: float, colour: str = INK, anchor: str = "start",
    weight: str = "normal", more: str = "",
) -> str:  # fmt: skip
    """Returns SVG text whose middle is at height y; `more` holds other attributes."""
    return (
        f'<text x="{x:.2f}" y="{y + size * 0.36:.2f}" font-size="{size:.3g}" fill="{colour}" '
        f'text-anchor="{anchor}" font-weight="{weight}"{more}>{escape(words)}</text>'
    )
