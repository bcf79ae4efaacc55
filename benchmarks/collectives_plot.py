"""The plot of benchmarks/collectives.py: time and ratio over size, one colour per algorithm."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from collectives_tables import short, verdict
from collectives_timing import REFERENCE, Point
from timing import size_name


class Style(NamedTuple):
    """The style of one line; similar colours differ in their markers."""

    color: str
    marker: str
    width: float = 1.5


STYLES = {
    REFERENCE: Style("#000000", "", 2.4),
    "ring": Style("#0072b2", "o", 2.6),
    "tree": Style("#d55e00", "s", 2.6),
    "ps": Style("#cc79a7", "D"),
    "p2p": Style("#56b4e9", "v"),
    "doubling": Style("#b8860b", "^"),
    "halving": Style("#3b3fa8", "x"),
    "hierarchical": Style("#8c4a2f", "P"),
    "mpi": Style("#8a8a8a", "."),
    "shared": Style("#009e73", "o"),
    "auto": Style("#f0c808", "", 7.0),
    "window": Style("#00563f", "*", 2.0),
    "gloo": Style("#7b2d8b", "d"),
}
FIRST = (REFERENCE, "ring", "tree")
"""These are drawn over the others."""
MAX_TICKS = 11  # labelled sizes


def draw(points: Sequence[Point], names: Sequence[str], subtitle: str, path: str) -> None:
    """Seconds above, on logarithmic axes; below, the ratio to the MPI library's all-reduce."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 10.5), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 0.87, 1), hspace=0.03)
    above, faster, below = figure.subplots(3, 1, sharex=True, height_ratios=(30, 3, 17))
    figure.suptitle(subtitle, x=0.01, ha="left", size=9, color="#555555")
    dashed = any(p.predicted for p in points)
    _lines(above, points, names, lambda p, name: p.seconds(name))
    _lines(below, points, names, lambda p, name: p.ratio(name))
    _predicted(above, points)
    legend = " (dashed: as predicted from alpha and beta)"
    _axes(above, points, "Time of an all-reduce" + legend * dashed)
    _axes(below, points, f"Time over {REFERENCE}'s")
    _seconds(above)
    _ratios(below)
    below.set_xlabel("buffer on each rank", size=9)
    _tree_or_ring(faster, points)
    for axes, value in ((above, Point.seconds), (below, Point.ratio)):
        _labels(figure, axes, points, names, value)
    figure.savefig(path, dpi=150)


def _lines(
    axes: Any, points: Sequence[Point], names: Sequence[str], figure: Callable[[Point, str], float]
) -> None:
    for name in names:
        s = STYLES[name]
        there = [p for p in points if name in p.times]
        behind = name == "auto"  # a broad, light line under that of its choice
        axes.plot(
            [p.nbytes for p in there],
            [figure(p, name) for p in there],
            color=s.color,
            marker=s.marker,
            markersize=5,
            linewidth=s.width,
            alpha=0.55 if behind else 1,
            zorder=2 if behind else 4 if name in FIRST else 3,
            solid_capstyle="round",
        )


def _predicted(axes: Any, points: Sequence[Point]) -> None:
    for name in {name: None for p in points for name in p.predicted}:
        there = [p for p in points if name in p.predicted]
        axes.plot(
            [p.nbytes for p in there],
            [p.predicted[name] for p in there],
            color=STYLES[name].color,
            linewidth=1.6 if name in FIRST else 1,
            linestyle=(0, (4, 3)),
            zorder=2.6 if name in FIRST else 2.5,
        )


def _axes(axes: Any, points: Sequence[Point], title: str) -> None:
    """Ticks at the measured sizes and a light grid."""
    from matplotlib.ticker import NullLocator

    sizes = [p.nbytes for p in _some(points)]
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [size_name(n) for n in sizes], size=9)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", length=0, labelsize=9, labelbottom=True)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    _title(axes, title)


def _some(points: Sequence[Point]) -> Sequence[Point]:
    """As many points as there is room for labels."""
    return points[:: -(-len(points) // MAX_TICKS)]


def _title(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", size=11, weight="bold", pad=7)


def _seconds(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _time(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _time(seconds: float) -> str:
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("\N{MICRO SIGN}s", 1e-6)):
        if seconds >= 0.999 * one:
            return f"{seconds / one:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def _ratios(axes: Any) -> None:
    """Ticks at 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tree_or_ring(axes: Any, points: Sequence[Point]) -> None:
    """One box per size, in the colour of the faster algorithm."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9, labelbottom=False)
    axes.grid(False)
    both = [p for p in _some(points) if {"tree", "ring"} <= p.times.keys()]
    if not both:
        axes.set_yticks(())
        return
    quotients = [[p.ratio("tree", "ring") for p in both]]
    if all(p.predicted for p in both):
        quotients.append([p.predicted["tree"] / p.predicted["ring"] for p in both])
    axes.set_ylim(len(quotients) - 0.5, -0.5)
    axes.set_yticks(range(len(quotients)), ("measured", "predicted")[: len(quotients)])
    _title(axes, "Tree or ring: the faster one, and by which factor")
    for i, row in enumerate(quotients):
        for p, q in zip(both, row, strict=True):
            even, name = verdict(q) == "even", "ring" if q > 1 else "tree"
            measured = i == 0 and not even
            color = "#666666" if even else STYLES[name].color
            axes.annotate(
                "even" if even else f"{name} {short(max(q, 1 / q))}",
                (p.nbytes, i),
                ha="center",
                va="center",
                size=8.5,
                color="white" if measured else color,
                weight="normal" if even else "bold",
                bbox={
                    "boxstyle": "round,pad=0.3",
                    "color": color,
                    "alpha": 1 if measured else 0.15,
                    "linewidth": 0,
                },
            )


def _labels(
    figure: Any,
    axes: Any,
    points: Sequence[Point],
    names: Sequence[str],
    value: Callable[[Point, str], float],
) -> None:
    """Each name at the end of its line, shifted where labels would overlap."""
    last = {n: p for p in points for n in names if n in p.times}
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    ends = {n: (p.nbytes, value(p, n)) for n, p in last.items()}
    at = {n: axes.transData.transform(end) * scale for n, end in ends.items()}
    right = max(x for x, _ in at.values())
    box = axes.get_window_extent()
    heights = spread({n: float(y) for n, (_, y) in at.items()}, 12, box.y0 * scale, box.y1 * scale)
    for name, height in heights.items():
        s, (x, y) = STYLES[name], at[name]
        label = axes.annotate(
            name,
            ends[name],
            xytext=(right + 26 - x, height - y),
            textcoords="offset points",
            size=9.5,
            va="center",
            color="#8a7300" if name == "auto" else s.color,
            weight="bold" if name in FIRST else "normal",
            arrowprops={
                "arrowstyle": "-",
                "color": s.color,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
        label.set_in_layout(False)


def spread(wanted: dict[str, float], gap: float, bottom: float, top: float) -> dict[str, float]:
    """Heights near those wanted, at least `gap` apart, between bottom and top."""
    names = sorted(wanted, key=lambda name: wanted[name])
    y = [wanted[name] for name in names]
    for _ in range(500):
        y[0], y[-1] = max(y[0], bottom), min(y[-1], top)
        for i in range(len(y) - 1):
            overlap = max(gap - (y[i + 1] - y[i]), 0)
            y[i], y[i + 1] = y[i] - overlap / 2, y[i + 1] + overlap / 2
    return dict(zip(names, y, strict=True))
