"""Draws the layouts of a search as a scatter plot: the time of a step against memory per rank."""

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10

from nnmpi.addons.planning.search import PricedLayout, SearchResult
from nnmpi.addons.simulator.drawing.svg import INK, QUIET, page, text
from nnmpi.options.amounts import amount, duration

LEFT, TOP, WIDTH, HEIGHT = 84.0, 72.0, 760.0, 400.0  # of the plot, in pixels
RADIUS, LINE = 4.5, 13.0  # of a point; between labels
FITS, BEST, TOO_LARGE = "#2f6fd0", "#d5700a", "#b0b5bf"
TICKS = 1, 2, 5


class LogAxis:
    """A logarithmic axis, from pixel `start` to pixel `stop`, for all of `values`."""

    def __init__(self, values: list[float], start: float, stop: float) -> None:
        room = 0.06 * (log10(max(values) / min(values)) or 1)
        self._low, self._high = log10(min(values)) - room, log10(max(values)) + room
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        """Returns the pixel at which a value is drawn on the axis."""
        part = (log10(value) - self._low) / (self._high - self._low)
        return self._start + part * (self._stop - self._start)

    def ticks(self) -> Iterator[float]:
        """Yields the round values (1, 2, 5 times powers of ten) on the axis."""
        for power in range(floor(self._low), ceil(self._high) + 1):
            for value in (n * 10.0**power for n in TICKS):
                if self._low <= log10(value) <= self._high:
                    yield value


def as_svg(search: SearchResult, title: str, memory: float | None = None) -> str:
    """Returns the plot as SVG; layouts above the line at `memory` bytes do not fit."""
    points = search.looked
    nbytes = [*(float(planned.nbytes) for planned in points), *([memory] if memory else [])]
    x = LogAxis([planned.time.seconds for planned in points], LEFT, LEFT + WIDTH)
    y = LogAxis(nbytes, TOP + HEIGHT, TOP)
    parts = [text(16, 26, title, 18, weight="bold"), *_axes(x, y)]
    if memory:
        parts.append(f'<path d="M{LEFT:g} {y.at(memory):.1f}h{WIDTH:g}" stroke="{BEST}"/>')
        parts.append(text(LEFT + WIDTH, y.at(memory) - 9, "memory of a rank", 12, BEST, "end"))
    best = {planned.layout for planned in search.best}
    for planned in sorted(points, key=lambda planned: planned.layout in best):
        is_large = memory is not None and planned.nbytes > memory
        colour = TOO_LARGE if is_large else BEST if planned.layout in best else FITS
        parts.append(_point(planned, x, y, colour))
    return page(LEFT + WIDTH + 24, TOP + HEIGHT + 92, [*parts, *_labels(search, x, y), *_legend()])


def _point(planned: PricedLayout, x: LogAxis, y: LogAxis, colour: str) -> str:
    label = f"{planned.flags}: {duration(planned.time.seconds)}, {amount(planned.nbytes)}"
    at = f'cx="{x.at(planned.time.seconds):.1f}" cy="{y.at(planned.nbytes):.1f}" r="{RADIUS:g}"'
    return f'<circle {at} fill="{colour}"><title>{escape(label)}</title></circle>'


def _labels(search: SearchResult, x: LogAxis, y: LogAxis) -> Iterator[str]:
    """Yields labels of the best layouts, moved up where they would overlap."""
    named = {planned.layout: (planned, name) for name, planned in search.pure.items()}
    for planned in search.best[:1]:
        named[planned.layout] = planned, planned.flags
    taken = list[tuple[float, float]]()
    for planned, name in named.values():
        x_at, top = x.at(planned.time.seconds), y.at(planned.nbytes) - RADIUS
        y_at = top + RADIUS - LINE
        while any(abs(x_at - a) < 90 and abs(y_at - d) < LINE for a, d in taken):
            y_at -= LINE
        taken.append((x_at, y_at))
        if top - y_at > LINE:
            yield f'<path d="M{x_at:.1f} {top:.1f}V{y_at + LINE / 2:.1f}" stroke="{QUIET}"/>'
        ends = "end" if x_at > LEFT + WIDTH / 2 else "start"
        yield text(x_at, y_at, name, 12, INK, ends)


def _axes(x: LogAxis, y: LogAxis) -> Iterator[str]:
    bottom = TOP + HEIGHT
    yield f'<path d="M{LEFT:g} {TOP:g}V{bottom:g}h{WIDTH:g}" stroke="{QUIET}" fill="none"/>'
    for value in x.ticks():
        yield f'<path d="M{x.at(value):.1f} {bottom:g}v6" stroke="{QUIET}"/>'
        yield text(x.at(value), bottom + 16, duration(value), 12, QUIET, "middle")
    for value in y.ticks():
        yield f'<path d="M{LEFT:g} {y.at(value):.1f}h-6" stroke="{QUIET}"/>'
        yield text(LEFT - 10, y.at(value), amount(value), 12, QUIET, "end")
    yield text(LEFT + WIDTH, bottom + 36, "a step", 13, QUIET, "end")
    yield text(LEFT - 10, TOP - 14, "memory", 13, QUIET, "end")


def _legend() -> Iterator[str]:
    x_at, y_at = LEFT, TOP + HEIGHT + 64
    for colour, words in ((BEST, "best ten"), (FITS, "others that fit"), (TOO_LARGE, "too large")):
        yield f'<circle cx="{x_at:g}" cy="{y_at:g}" r="{RADIUS:g}" fill="{colour}"/>'
        yield text(x_at + 12, y_at, words, 13)
        x_at += 40 + 7.2 * len(words)
