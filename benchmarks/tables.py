"""What benchmarks/collectives.py prints: a line a size, a column a way to sum."""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from allreduces import REFERENCE, Point
from timing import Row, size_name

from nnmpi.collectives.price import Network

WIDTH = 110
EVEN = 0.1  # two times that are no further apart are even


def machine(facts: Row, ranks: int) -> str:
    """Where it was measured, in one line."""
    hosts = f"{facts['hosts']} host" + "s" * (facts["hosts"] > 1)
    where = f"{facts['cpu']}, {facts['cores']} cores" if facts["cpu"] else f"{facts['cores']} cores"
    crowd = " (they take turns)" if ranks > facts["cores"] * facts["hosts"] else ""
    return f"{ranks} rank{'s' * (ranks > 1)} on {hosts}{crowd}, {where}, {facts['mpi']}"


def fitted(network: Network, off: Sequence[float]) -> str:
    """The line through the ping-pong times, and how well it fits."""
    alpha, beta = network.link
    rate = f" ({1e-9 / beta:.1f} GB/s)" if beta else ""
    return (
        f"ping-pong: alpha {alpha * 1e6:.2f} us a message, beta {beta * 1e9:.3f} ns a byte{rate}, "
        f"gamma {network.gamma * 1e9:.3f} ns a byte added\n"
        f"           messages take {min(off):.2f} to {max(off):.2f} times what this line says"
    )


def head(names: Sequence[str]) -> str:
    """Above the first table."""
    title = f"Time over {REFERENCE}'s (below 1: faster; *: the fastest)"
    return f"\n{title}\n{'size':>7}{'MPI us':>10} " + _cells({n: n for n in names[1:]}, names[1:])


def line(point: Point, names: Sequence[str]) -> str:
    """One size in the first table."""
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
    """What was not timed, and how long one call takes."""
    for nbytes, ways in slow.items():
        whole = ", and with it nothing else" if REFERENCE in ways else ""
        calls = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in ways.items())
        words = f"{size_name(nbytes)}: too slow to be timed{whole}, one call: {calls}"
        yield textwrap.fill(words, WIDTH, subsequent_indent="  ")


def rest(points: Sequence[Point], names: Sequence[str]) -> Iterator[str]:
    """The tables that follow when all is measured."""
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
    yield "\nBus bandwidth in GB/s, 2 (N - 1) / N bytes a second"
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
            f"in the median, {max(map(_factor, every)):.2f} at most."
        )
    p = points[0]
    more = [p.seconds(n) - p.predicted[n] for n in plans if n in p.times]
    if more and statistics.median(more) > 0:
        yield (
            f"At {size_name(p.nbytes)} a call takes {statistics.median(more) * 1e6:.1f} us more "
            "than its messages (median of the plans)."
        )


def _tree_and_ring(points: Sequence[Point]) -> Iterator[str]:
    """Where the one loses to the other, as measured and as predicted."""
    both = [p for p in points if {"tree", "ring"} <= p.times.keys()]
    if not both or both[0].ranks == 1:
        return
    ways: dict[str, Callable[[Point], float]] = {"measured": lambda p: p.ratio("tree", "ring")}
    if all(p.predicted for p in both):
        ways["predicted"] = lambda p: p.predicted["tree"] / p.predicted["ring"]
    yield "\nTree over ring"
    figures = {how: [short(quotient(p)) for p in both] for how, quotient in ways.items()}
    yield from _across({"": [size_name(p.nbytes) for p in both], **figures})
    for how, quotient in ways.items():
        words = f"As {how}, the tree is {_stretches(both, quotient)}."
        yield textwrap.fill(words, WIDTH, subsequent_indent="  ")


def _stretches(points: Sequence[Point], quotient: Callable[[Point], float]) -> str:
    """Neighbouring sizes with one verdict, such as faster from 256 B to 4 KB, slower at 1 MB."""
    parts = []
    for said, group in groupby(points, lambda p: verdict(quotient(p))):
        run = list(group)
        sizes = [size_name(p.nbytes) for p in (run[0], run[-1])]
        where = f"from {sizes[0]} to {sizes[1]}" if len(run) > 1 else f"at {sizes[0]}"
        parts.append(f"{said} {where}")
    return ", ".join(parts)


def verdict(quotient: float) -> str:
    """On the first of two times."""
    if quotient > 1 + EVEN:
        return "slower"
    return "faster" if quotient < 1 / (1 + EVEN) else "even"


def _auto(points: Sequence[Point]) -> Iterator[str]:
    """What auto took, and what that cost beside the best it could have taken."""
    known = [(p, best) for p in points if "auto" in p.times and (best := p.best())]
    if not known:
        return
    lines = {
        "": [size_name(p.nbytes) for p, _ in known],
        "auto took": [p.taken for p, _ in known],
        "fastest": [best for _, best in known],
        "auto / it": [short(p.ratio("auto", best)) for p, best in known],
    }
    yield ""
    yield from _across(lines)


def _across(lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A column a size, in as many blocks as the width asks for."""
    width = max(9, *(2 + len(cell) for cells in lines.values() for cell in cells))
    most = (WIDTH - 10) // width
    for i in range(0, len(lines[""]), most):
        for title, cells in lines.items():
            yield f"{title:10}" + "".join(f"{cell:>{width}}" for cell in cells[i : i + most])


def short(x: float) -> str:
    """Three digits."""
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}" if x < 99.95 else f"{x:.0f}"


def _factor(q: float) -> float:
    return max(q, 1 / q)


def _cells(cells: dict[str, str], names: Sequence[str]) -> str:
    """A column a name; a star stands behind the figure, not in its way."""
    text = ""
    for name in names:
        cell = cells.get(name, "-")
        width = max(len(name), 4) + 1
        text += f"{cell:>{width + 1}}" if cell.endswith("*") else f"{cell:>{width}} "
    return text.rstrip()
