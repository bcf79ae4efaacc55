"""The subcommand `sync` of `python -m nnmpi.simulate`: BSP, SSP and ASP with slow workers, and, in
`replicas.py`, the traffic of local steps and gossip.

A worker pulls parameters from a server, computes a gradient, pushes it, and may begin its next step
unless it is more than `bound` steps ahead of the slowest worker: 0 is BSP, S is SSP with staleness
S, infinity is ASP. Only steps take time; messages and the server take none.
"""

import argparse
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.simulator.commands import replicas
from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.addons.simulator.drawing.timeline import WIDTH, Span, Timeline, draw
from nnmpi.addons.simulator.network import Record
from nnmpi.options.amounts import plural
from nnmpi.options.tables import table
from nnmpi.schedules.delay import Delay

HELP = "bsp, ssp and asp with slow workers; local steps and gossip on slow networks"

STALENESS = 3  # default of ssp
MOST_GRADIENTS = 100_000  # gradients, simulated in a few seconds


class WorkerStep(NamedTuple):
    """A step of a worker, with the other gradients that the server has applied meanwhile."""

    worker: int
    step: int
    start: float
    end: float
    staleness: int


def simulate(
    bound: float, duration: Callable[[int, int], float], p: int, gradients: int
) -> list[WorkerStep]:
    """Simulates p workers of a parameter server that together push `gradients` gradients; returns
    their steps in the order of their pushes.

    A step takes duration(worker, step); a worker may be `bound` steps ahead of the slowest one.
    """
    clocks, pulled, began, waiting = [0] * p, [0] * p, [0.0] * p, set[int]()
    busy, left = [(duration(w, 0), w) for w in range(p)], gradients - p
    heapq.heapify(busy)
    done: list[WorkerStep] = []
    while busy:
        now, pushing = heapq.heappop(busy)
        start, stale = began[pushing], len(done) - pulled[pushing]
        done.append(WorkerStep(pushing, clocks[pushing], start, now, stale))
        clocks[pushing] += 1
        waiting.add(pushing)
        for w in sorted(waiting):
            if left and clocks[w] - min(clocks) <= bound:
                waiting.remove(w)
                left, pulled[w], began[w] = left - 1, len(done), now
                heapq.heappush(busy, (now + duration(w, clocks[w]), w))
    return done


def timeline(done: Sequence[WorkerStep], p: int, title: str = "") -> Timeline:
    """Returns the steps of p workers as a timeline; between its steps a worker waits."""
    spans = tuple(Span(g.worker, "STEP", g.step, g.worker, g.start, g.end) for g in done)
    return Timeline(spans, p, title)


# ---- theory: the time in which the workers compute one gradient each, over a long run


def bsp_time(delays: Sequence[Delay]) -> float:
    """Returns the mean time of a BSP step, in which all workers wait for the slowest one.

    A worker's step takes `always` with probability 1 - share, else always * jitter. The probability
    that all workers take at most x is a product of probabilities, which changes only where x is one
    of these times: so the mean is a sum over these times.
    """
    points = sorted({d.always * f for d in delays for f in (1.0, d.jitter)})
    below = [math.prod(_at_most(d, x) for d in delays) for x in points]
    return points[-1] - sum((b - a) * c for (a, b), c in zip(pairwise(points), below, strict=False))


def _at_most(d: Delay, x: float) -> float:
    """Returns the probability that a step of a worker with this delay takes at most x."""
    return (1 - d.share) * (d.always <= x) + d.share * (d.always * d.jitter <= x)


def ssp_time(delays: Sequence[Delay]) -> float:
    """Returns the least mean time of a step under SSP: that of the worker which is slowest on
    average, since others may be only a few steps ahead of it."""
    return max(d.mean for d in delays)


def asp_time(delays: Sequence[Delay]) -> float:
    """Returns the mean time under ASP, where nobody waits, in which as many gradients arrive as
    there are workers: to compare with a BSP step."""
    return len(delays) / sum(1 / d.mean for d in delays)


# ---- the command


class Mode(NamedTuple):
    """BSP, SSP or ASP: the steps that a worker may be ahead, given --staleness, and the time of a
    step in theory, given the delays of all workers."""

    bound: Callable[[int], float]
    time: Callable[[Sequence[Delay]], float]
    about: str


MODES = {
    "bsp": Mode(lambda s: 0, bsp_time, "all wait for all in each step"),
    "ssp": Mode(lambda s: s, ssp_time, "a worker may be {} ahead"),
    "asp": Mode(lambda s: math.inf, asp_time, "nobody waits"),
}

BOTH = {"sync", "svg", "json"}
"""Options that apply to --workers as well as to --parameters."""


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `sync`."""
    about = "default: all of --workers, or all of --parameters"
    p.add_argument("--sync", choices=[*MODES, *replicas.SYNCS], help=about)
    run = p.add_argument_group("waiting for slow workers (--sync bsp, ssp, asp)")
    run.add_argument("--workers", type=int, metavar="P")
    run.add_argument("--steps", type=int, default=12, help="steps a worker, on average")
    run.add_argument("--staleness", type=int, metavar="S", help=f"for ssp (default {STALENESS})")
    replicas.add_options(p)
    slow = p.add_argument_group("slow workers")
    slow.add_argument("--slow-rank", metavar="R:FACTOR[,...]", help="workers that are always slow")
    slow.add_argument("--jitter", metavar="P:FACTOR", help="each is slow in a share P of steps")
    slow.add_argument("--seed", type=int, default=0, help="chooses the slow steps")
    output = p.add_argument_group("output")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """Returns the output of `sync`, for workers of a server or for replicas."""
    of_replicas, of_all = _defaults(replicas.add_options), _defaults(add_options)
    given = {name for name, value in of_all.items() if getattr(options, name) != value}
    if (options.workers is None) == (options.parameters is None):
        raise ValueError(
            "give --workers P to see how long workers wait, or --parameters N to see what replicas "
            "send: one of them"
        )
    named = "parameters" if options.parameters is not None else "workers"
    wrong = {name for name in given - BOTH if (name in of_replicas) == (named == "workers")}
    if wrong:
        raise ValueError(
            f"--{min(wrong).replace('_', '-')} says nothing about --{named}: leave it out"
        )
    if options.sync is not None and (options.sync in MODES) != (named == "workers"):
        fitting = MODES if named == "workers" else replicas.SYNCS
        raise ValueError(f"--sync {options.sync} with --{named}: take {' or '.join(fitting)}")
    return replicas.run(options) if named == "parameters" else _waiting(options)


def _defaults(add: Callable[[argparse.ArgumentParser], None]) -> dict[str, Any]:
    p = argparse.ArgumentParser()
    add(p)
    return vars(p.parse_args([]))


def _waiting(options: argparse.Namespace) -> Any:
    p, steps = options.workers, options.steps
    if p < 1 or steps < 1 or p * steps > MOST_GRADIENTS:
        raise ValueError(
            f"--workers {p} and --steps {steps} must be at least 1, and their product at most "
            f"{MOST_GRADIENTS:,}"
        )
    if options.sync in ("bsp", "asp") and options.staleness is not None:
        raise ValueError(
            f"--staleness {options.staleness} is for --sync ssp; --sync {options.sync} has none: "
            "leave it out"
        )
    staleness = STALENESS if options.staleness is None else options.staleness
    if staleness < 0:
        raise ValueError(f"--staleness {staleness} must be at least 0")
    delays = [Delay.of(options.slow_rank, options.jitter, options.seed, w, p) for w in range(p)]
    modes = MODES if options.sync is None else (options.sync,)
    simulated = _simulated(staleness, delays, steps)
    records, timelines = zip(*(x for x in simulated if x[0]["sync"] in modes), strict=True)
    slow = [f"--slow-rank {options.slow_rank}"] * bool(options.slow_rank)
    slow += [f"--jitter {options.jitter}"] * bool(options.jitter)
    who = " and ".join(slow) or "all alike"
    heading = f"{p} worker{'s' * (p > 1)}, {p * steps} gradients; {who}; a usual step takes 1"
    if options.svg:
        options.svg.write_text(svg(timelines, heading), encoding="utf-8")
    if options.json:
        return records
    drawn = f"A drawing of {steps} steps is too wide for text: take fewer --steps, or --svg FILE."
    if max(timeline.end for timeline in timelines) <= WIDTH:
        drawn = draw(timelines)
    return f"{heading}\n{_table(records, timelines)}\n\n{drawn}"


def _simulated(
    staleness: int, delays: Sequence[Delay], steps: int
) -> Iterator[tuple[Record, Timeline]]:
    """Yields the record and the timeline of each mode, for workers that make `steps` steps on
    average. BSP comes first: the others are compared with it."""
    p, bsp = len(delays), 0.0

    def duration(worker: int, step: int) -> float:
        return delays[worker].factor(step)

    for name, mode in MODES.items():
        done = simulate(mode.bound(staleness), duration, p, p * steps)
        end = done[-1].end
        bsp = bsp or end
        # BSP applies the gradients of a step as one sum: none is stale
        stale = [0 if name == "bsp" else g.staleness for g in done]
        record = {
            "sync": name,
            "time": end,
            "speed_over_bsp": bsp / end,
            "speed_over_bsp_in_theory": bsp_time(delays) / mode.time(delays),
            "mean_staleness": sum(stale) / len(stale),
            "largest_staleness": max(stale),
            "steps": [g._asdict() for g in done],
        }
        label = f"{name} {staleness}" if "{}" in mode.about else name
        title = f"{label}: {mode.about.format(plural(staleness, 'step'))}"
        yield record, timeline(done, p, title)


def _table(records: Sequence[Record], timelines: Sequence[Timeline]) -> str:
    def waiting(record: Record, drawn: Timeline) -> float:
        busy = sum(span.end - span.start for span in drawn.spans)
        return float(1 - busy / (drawn.ranks * record["time"]))

    cells = {
        "": lambda x: x[1].title.split(":")[0],
        "time": lambda x: f"{x[0]['time']:.4g}",
        "speed over bsp": lambda x: f"{x[0]['speed_over_bsp']:.2f}",
        "in theory": lambda x: f"{x[0]['speed_over_bsp_in_theory']:.2f}",
        "waiting": lambda x: f"{waiting(*x):.0%}",
        "mean staleness": lambda x: f"{x[0]['mean_staleness']:.1f}",
        "largest": lambda x: f"{x[0]['largest_staleness']}",
    }
    return table(cells, zip(records, timelines, strict=True))
