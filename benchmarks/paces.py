"""For benchmarks/sync.py: what is compared, what to expect of it, and the picture of what came.

In units of a worker's step, for p workers:

    random    a step takes 5 at a tenth, else 1: 1.4 in the mean. BSP waits for the slowest of p,
              1 + 4 (1 - 0.9^p): 2.38 for 4. So nothing is faster than 2.38 / 1.4 = 1.7 times BSP.
    one slow  BSP makes p gradients in 3. ASP makes 3 (p - 1) + 1 in that time: 2.5 times BSP for
              4. SSP has BSP's pace when the others are as far ahead as they may be.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from timing import Row

from nnmpi.parallel.checks.slow_ranks import Delay


class Case(NamedTuple):
    """Who is slow, and when."""

    name: str
    slow: float = 1.0  # how many times as slow the first worker always is
    jitter: str | None = None

    @property
    def says(self) -> str:
        """In words."""
        if self.jitter:
            share, factor = self.jitter.split(":")
            return f"each worker {factor}x slower at {float(share):.0%} of its steps"
        return f"one worker {self.slow:g}x slower" if self.slow > 1 else "all workers alike"

    def slow_ranks(self, workers: int, base: float) -> str:
        """What --slow-rank is to say."""
        return ",".join(f"{w}:{base * (1 if w else self.slow):g}" for w in range(workers))


class Mode(NamedTuple):
    """One way to wait, or not to."""

    name: str
    sync: str
    bound: float
    servers: int = 1

    @property
    def staleness(self) -> int:
        """As the config has it."""
        return int(self.bound) if self.sync == "ssp" else 0


CASES = {"none": Case("none"), "random": Case("random", 1, "0.1:5"), "slow": Case("one slow", 3)}
MODES = {
    "bsp": Mode("bsp", "bsp", 0),
    "allreduce": Mode("all-reduce", "bsp", 0, 0),
    "ssp1": Mode("ssp 1", "ssp", 1),
    "ssp3": Mode("ssp 3", "ssp", 3),
    "ssp10": Mode("ssp 10", "ssp", 10),
    "asp": Mode("asp", "asp", float("inf")),
}

# ---- what to expect


class Paced(NamedTuple):
    """When each gradient came, and its staleness."""

    times: list[float]
    staleness: list[int]

    def seconds(self, cold: int) -> float:
        """From the gradient of this number to the last."""
        return self.times[-1] - self.times[cold - 1]

    @property
    def mean_staleness(self) -> float:
        """Over all gradients."""
        return sum(self.staleness) / len(self.staleness)


def expected(case: Case, mode: Mode, p: int, steps: int, seed: int) -> Paced:
    """A run of p workers as theory has it, with the same steps slow at random."""
    delays = [Delay.of(case.slow_ranks(p, 1), case.jitter, seed, w, p) for w in range(p)]
    came = paced(mode.bound, lambda w, step: delays[w].factor(step), p, p * steps)
    return came if mode.bound else came._replace(staleness=[0])  # gradients are summed first


def paced(bound: float, takes: Callable[[int, int], float], p: int, gradients: int) -> Paced:
    """An epoch of p workers in which nothing but takes(worker, step) takes time."""
    clocks, pulled, waiting, active = [0] * p, [0] * p, set[int](), set(range(p))
    busy, left = [(takes(w, 0), w) for w in range(p)], gradients - p
    heapq.heapify(busy)
    came = Paced([], [])
    while busy:
        now, w = heapq.heappop(busy)
        came.staleness.append(len(came.times) - pulled[w])
        came.times.append(now)
        clocks[w] += 1
        waiting.add(w)
        while ready := _ready(bound, clocks, active, waiting):
            w = ready[0]
            waiting.remove(w)
            if left:
                left, pulled[w] = left - 1, len(came.times)
                heapq.heappush(busy, (now + takes(w, clocks[w]), w))
            else:
                active.remove(w)
    return came


def _ready(bound: float, clocks: Sequence[int], active: set[int], waiting: set[int]) -> list[int]:
    """Those that wait and are not too far ahead of the slowest."""
    slowest = min((clocks[w] for w in active), default=0)
    return sorted(w for w in waiting if clocks[w] - slowest <= bound)


# ---- the picture

COLORS = {
    "bsp": "#0072b2",
    "all-reduce": "#8a8a8a",
    "ssp 1": "#f5b78a",
    "ssp 3": "#e8853d",
    "ssp 10": "#b34a00",
    "asp": "#009e73",
}
WIDTH = 0.86  # of all bars of a group


def draw(rows: Sequence[Row], path: str) -> None:
    """Rates over BSP's, staleness and accuracy, a group a case and a colour a way to wait."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 8.4), layout="constrained")
    above, *below = figure.subplot_mosaic("AA;BC", height_ratios=(4, 3)).values()
    first = rows[0]
    where = f"{first['ranks'] - 1} workers and a server on {first['cores']} cores, {first['cpu']}"
    figure.suptitle(where, x=0.01, ha="left", size=9, color="#555555")
    _groups(above, rows, "ratio", "{:.2f}", "Samples a second over those of BSP with a server")
    _theory(above, rows)
    _groups(below[0], rows, "mean_staleness", "{:.1f}", "Mean staleness of a gradient")
    _groups(below[1], rows, "accuracy", "{:.1%}", "Accuracy after as many samples")
    least = min(row["accuracy"] for row in rows)
    below[1].set_ylim(max(0.0, 1 - 2.2 * (1 - least)), 1)
    below[1].yaxis.set_major_formatter("{x:.0%}")
    names = dict.fromkeys(row["subject"] for row in rows)
    handles = [Patch(color=COLORS[name], label=name) for name in names]
    handles += above.get_legend_handles_labels()[0]
    above.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def _groups(axes: Any, rows: Sequence[Row], key: str, form: str, title: str) -> None:
    for row, x, width in _places(rows):
        axes.bar(x, row[key], 0.94 * width, color=COLORS[row["subject"]])
        label = form.format(row[key])
        small = {"ha": "center", "size": 8, "rotation": 90 if len(label) > 4 else 0}
        top = max(row[key], *_strokes(row)) if key == "ratio" else row[key]
        axes.annotate(label, (x, top), (0, 4), textcoords="offset points", **small)
    cases = {row["case"]: row["straggler"] for row in rows}
    names = [f"{case}\n{words}" if key == "ratio" else case for case, words in cases.items()]
    axes.set_xticks(range(len(cases)), names, size=9)
    axes.set_ylim(0, 1.22 * max(*(row[key] for row in rows), 0.1))
    axes.tick_params(length=0, labelsize=9)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", size=11, weight="bold")


def _places(rows: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Each row, where its bar is, and how wide."""
    found = []
    for i, case in enumerate(dict.fromkeys(row["case"] for row in rows)):
        group = [row for row in rows if row["case"] == case]
        width = WIDTH / max(len(group), 3)
        for j, row in enumerate(group):
            found.append((row, i + (j - (len(group) - 1) / 2) * width, width))
    return found


def _strokes(row: Row) -> dict[float, str]:
    """Heights that are marked at the bar of a ratio."""
    goal = {row["goal"]: "goal"} if "goal" in row else {}
    return {row["ratio_in_theory"]: "in theory", **goal}


def _theory(axes: Any, rows: Sequence[Row]) -> None:
    """A black stroke across each bar, and a dotted red one where there is a goal."""
    said = set()
    for row, x, width in _places(rows):
        for y, name in _strokes(row).items():
            color, style = ("#d4002a", (0, (1.5, 1))) if name == "goal" else ("black", "-")
            ends, label = (x - width / 2, x + width / 2), None if name in said else name
            axes.plot(ends, (y, y), color=color, linestyle=style, linewidth=2, label=label)
            said.add(name)
