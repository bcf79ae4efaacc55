"""The tables of benchmarks/collectives.py: one line per size, one column per implementation."""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from lib.collectives.timing import REFERENCE, Point
from lib.timing import Row, size_name
from nnmpi.collectives.price import Network

WIDTH = 110
EVEN = 0.1  # relative difference up to which two times count as even


def machine(facts: Row, ranks: int) -> str:
    """The machine, in one line."""
    hosts = f"{facts['hosts']} host" + "s" * (facts["hosts"] > 1)
    where = f"{facts['cpu']}, {facts['cores']} cores" if facts["cpu"] else f"{facts['cores']} cores"
    shared = " (oversubscribed)" if ranks > facts["cores"] * facts["hosts"] else ""
    return f"{ranks} rank{'s' * (ranks > 1)} on {hosts}{shared}, {where}, {facts['mpi']}"


def fitted(network: Network, off: Sequence[float]) -> str:
    """The network fitted to ping-pong times, and the quality of the fit."""
    alpha, beta = network.link
    rate = f" ({1e-9 / beta:.1f} GB/s)" if beta else ""
    return (
        f"ping-pong: alpha {alpha * 1e6:.2f} us/message, beta {beta * 1e9:.3f} ns/byte{rate}, "
        f"gamma {network.gamma * 1e9:.3f} ns/byte added\n"
        f"           measured over fitted time: {min(off):.2f} to {max(off):.2f}"
    )


def head(names: Sequence[str]) -> str:
    """The head of the first table."""
    title = f"Time over {REFERENCE}'s (below 1: faster; *: the fastest)"
    return f"\n{title}\n{'size':>7}{'MPI us':>10} " + _cells({n: n for n in names[1:]}, names[1:])


def line(point: Point, names: Sequence[str]) -> str:
    """One size of the first table."""
    fastest = min(point.times, key=point.seconds)
    cells = {
        name: short(point.ratio(name)) + "*" * (name == fastest)
        for name in point.times
        if name != REFERENCE
    }
    mpi = f"{point.seconds(REFERENCE) * 1e6:,.1f}"[:9] + "*" * (fastest == REFERENCE)
    return f"{size_name(point.nbytes):>7}{mpi:>{10 + mpi.endswith('*')}}".ljust(18) + _cells(
        cells, names[1:]
    )


def skipped(slow: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """The implementations that were not timed, and the time of one call."""
    for nbytes, seconds_of in slow.items():
        others = ", so nothing is timed at this size" if REFERENCE in seconds_of else ""
        calls = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in seconds_of.items())
        words = f"{size_name(nbytes)}: too slow to be timed{others}; one call: {calls}"
        yield textwrap.fill(words, WIDTH, subsequent_indent="  ")


def rest(points: Sequence[Point], names: Sequence[str]) -> Iterator[str]:
    """The tables that need all results."""
    if not points:
        yield "nothing was measured"
        return
    plans = [name for name in names if name in points[0].predicted]
    if points[0].ranks > 1:
        yield from _bus(points, names)
    if plans:
        yield from _predictions(points, plans)
    yield from _tree_and_ring(points)
    yield from _auto(points)


def _bus(points: Sequence[Point], names: Sequence[str]) -> Iterator[str]:
    yield "\nBus bandwidth in GB/s: 2 (N - 1) / N times the bytes per second"
    yield f"{'size':>7}{'MPI':>10} " + _cells({n: n for n in names[1:]}, names[1:])
    for point in points:
        rates = {name: point.bus(name) * 1e-9 for name in point.times}
        cells = {n: short(x) if x >= 0.0995 else f"{x:.3f}" for n, x in rates.items()}
        yield f"{size_name(point.nbytes):>7}{cells[REFERENCE]:>10} " + _cells(cells, names[1:])


def _predictions(points: Sequence[Point], plans: Sequence[str]) -> Iterator[str]:
    yield "\nTime over that predicted from alpha, beta and gamma"
    yield f"{'size':>7} " + _cells({n: n for n in plans}, plans)
    every = []
    for point in points:
        off = {n: point.seconds(n) / point.predicted[n] for n in plans if n in point.times}
        every += off.values()
        yield f"{size_name(point.nbytes):>7} " + _cells(
            {n: short(q) for n, q in off.items()}, plans
        )
    if every:
        yield (
            f"Predictions are off by a factor of {statistics.median(map(_factor, every)):.2f} "
            f"(median) and {max(map(_factor, every)):.2f} (maximum)."
        )
    p = points[0]
    more = [p.seconds(n) - p.predicted[n] for n in plans if n in p.times]
    if more and statistics.median(more) > 0:
        yield (
            f"At {size_name(p.nbytes)} a call takes {statistics.median(more) * 1e6:.1f} us more "
            "than its messages (median of the plans)."
        )


def _tree_and_ring(points: Sequence[Point]) -> Iterator[str]:
    """The sizes at which the tree is faster or slower than the ring, measured and predicted."""
    both = [p for p in points if {"tree", "ring"} <= p.times.keys()]
    if not both or both[0].ranks == 1:
        return
    sources: dict[str, Callable[[Point], float]] = {"measured": lambda p: p.ratio("tree", "ring")}
    if all(p.predicted for p in both):
        sources["predicted"] = lambda p: p.predicted["tree"] / p.predicted["ring"]
    yield "\nTree over ring"
    figures = {how: [short(quotient(p)) for p in both] for how, quotient in sources.items()}
    yield from _transposed({"": [size_name(p.nbytes) for p in both], **figures})
    for how, quotient in sources.items():
        words = f"As {how}, the tree is {_ranges(both, quotient)}."
        yield textwrap.fill(words, WIDTH, subsequent_indent="  ")


def _ranges(points: Sequence[Point], quotient: Callable[[Point], float]) -> str:
    """Ranges of sizes with the same verdict: faster from 256 B to 4 KiB, slower at 1 MiB."""
    parts = []
    for word, group in groupby(points, lambda p: verdict(quotient(p))):
        run = list(group)
        sizes = [size_name(p.nbytes) for p in (run[0], run[-1])]
        where = f"from {sizes[0]} to {sizes[1]}" if len(run) > 1 else f"at {sizes[0]}"
        parts.append(f"{word} {where}")
    return ", ".join(parts)


def verdict(quotient: float) -> str:
    """The first of two times compared with the second: faster, slower or even."""
    if quotient > 1 + EVEN:
        return "slower"
    return "faster" if quotient < 1 / (1 + EVEN) else "even"


def _auto(points: Sequence[Point]) -> Iterator[str]:
    """The choices of auto, and their time over that of the fastest algorithm."""
    known = [(p, best) for p in points if "auto" in p.times and (best := p.best())]
    if not known:
        return
    lines = {
        "": [size_name(p.nbytes) for p, _ in known],
        "auto chose": [p.taken for p, _ in known],
        "fastest": [best for _, best in known],
        "over it": [short(p.ratio("auto", best)) for p, best in known],
    }
    yield ""
    yield from _transposed(lines)


def _transposed(lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """One column per size, in as many blocks as the width requires."""
    width = max(9, *(2 + len(cell) for cells in lines.values() for cell in cells))
    most = (WIDTH - 10) // width
    for i in range(0, len(lines[""]), most):
        for title, cells in lines.items():
            yield f"{title:10}" + "".join(f"{cell:>{width}}" for cell in cells[i : i + most])


def short(x: float) -> str:
    """Three significant digits."""
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}" if x < 99.95 else f"{x:.0f}"


def _factor(q: float) -> float:
    return max(q, 1 / q)


def _cells(cells: dict[str, str], names: Sequence[str]) -> str:
    """One column per name; a star follows the figure without shifting it."""
    text = ""
    for name in names:
        cell = cells.get(name, "-")
        width = max(len(name), 4) + 1
        text += f"{cell:>{width + 1}}" if cell.endswith("*") else f"{cell:>{width}} "
    return text.rstrip()
