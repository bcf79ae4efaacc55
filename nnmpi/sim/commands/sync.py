"""The subcommand `sync` of `python -m nnmpi.simulate`: BSP, SSP and ASP with slow workers."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.schedules.delay import Delay
from nnmpi.sim import synchrony
from nnmpi.sim.show import columns
from nnmpi.sim.svg import svg
from nnmpi.sim.synchrony import Gradient
from nnmpi.sim.timeline import WIDTH, draw

HELP = "bsp, ssp and asp with slow workers"

STALENESS = 3  # of ssp, if none is given
MOST = 100_000  # gradients: a simulation takes a few seconds


class Mode(NamedTuple):
    """A way to synchronise: by how many steps workers may differ, and its time in theory."""

    bound: Callable[[int], float]  # of --staleness
    time: Callable[[Sequence[Delay]], float]
    about: str


MODES = {
    "bsp": Mode(lambda s: 0, synchrony.bsp_time, "all wait for all in each step"),
    "ssp": Mode(lambda s: s, synchrony.ssp_time, "a worker may be {} ahead"),
    "asp": Mode(lambda s: math.inf, synchrony.asp_time, "nobody waits"),
}


class SimulatedMode(NamedTuple):
    """One mode: what the simulation gives, and what theory allows over BSP."""

    name: str
    title: str
    done: list[Gradient]
    limit: float

    @property
    def end(self) -> float:
        """When the last gradient is there."""
        return self.done[-1].end

    @property
    def staleness(self) -> tuple[float, int]:
        """Mean and maximum; BSP applies the gradients of a step as one sum: none is stale."""
        found = [0 if self.name == "bsp" else g.staleness for g in self.done]
        return sum(found) / len(found), max(found)


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    run = p.add_argument_group("run")
    run.add_argument("--workers", type=int, required=True, metavar="P")
    run.add_argument("--steps", type=int, default=12, help="of each worker, on average")
    run.add_argument("--sync", choices=MODES, help="one of them; default: all, side by side")
    run.add_argument("--staleness", type=int, metavar="S", help=f"of ssp (default {STALENESS})")
    slow = p.add_argument_group("slow workers")
    slow.add_argument("--slow-rank", metavar="R:FACTOR[,...]", help="these are always slow")
    slow.add_argument("--jitter", metavar="P:FACTOR", help="each is, in a fraction P of its steps")
    slow.add_argument("--seed", type=int, default=0, help="of the steps that are slow")
    output = p.add_argument_group("output")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """The output of `sync`."""
    p, steps = options.workers, options.steps
    if p < 1 or steps < 1 or p * steps > MOST:
        raise ValueError(
            f"--workers {p} and --steps {steps} must be at least 1, and their product at most "
            f"{MOST:,}"
        )
    if options.sync in ("bsp", "asp") and options.staleness is not None:
        raise ValueError(
            f"--staleness {options.staleness} is of --sync ssp, and {options.sync} has none: leave "
            "it out"
        )
    staleness = STALENESS if options.staleness is None else options.staleness
    if staleness < 0:
        raise ValueError(f"--staleness {staleness} must be at least 0")
    delays = [Delay.of(options.slow_rank, options.jitter, options.seed, w, p) for w in range(p)]
    # BSP is what the others are compared with
    found = [_simulated(name, staleness, delays, steps) for name in MODES]
    shown = [s for s in found if options.sync in (None, s.name)]
    slow = [f"--slow-rank {options.slow_rank}"] * bool(options.slow_rank)
    slow += [f"--jitter {options.jitter}"] * bool(options.jitter)
    who = " and ".join(slow) or "all alike"
    heading = f"{p} worker{'s' * (p > 1)}, {p * steps} gradients; {who}; a usual step takes 1"
    timelines = [synchrony.timeline(s.done, p, s.title) for s in shown]
    if options.svg:
        options.svg.write_text(svg(timelines, heading), encoding="utf-8")
    if options.json:
        return [_record(s, found[0]) for s in shown]
    drawn = f"A drawing of {steps} steps has no room as text: take fewer --steps, or --svg FILE."
    if max(s.end for s in shown) <= WIDTH:
        drawn = draw(timelines)
    return f"{heading}\n{_table(shown, found[0], p)}\n\n{drawn}"


def _simulated(name: str, staleness: int, delays: Sequence[Delay], steps: int) -> SimulatedMode:
    mode, p = MODES[name], len(delays)
    done = synchrony.simulate(
        mode.bound(staleness), lambda w, step: delays[w].factor(step), p, p * steps
    )
    ahead = f"{staleness} step{'s' * (staleness != 1)}"
    label = f"{name} {staleness}" if "{}" in mode.about else name
    title = f"{label}: {mode.about.format(ahead)}"
    return SimulatedMode(name, title, done, synchrony.bsp_time(delays) / mode.time(delays))


def _table(shown: Sequence[SimulatedMode], bsp: SimulatedMode, p: int) -> str:
    rows = [["", "time", "speed over bsp", "in theory", "waiting", "mean staleness", "largest"]]
    for s in shown:
        mean, most = s.staleness
        speeds = f"{bsp.end / s.end:.2f}", f"{s.limit:.2f}"
        waited = f"{synchrony.waited(s.done, p):.0%}"
        label = s.title.split(":")[0]
        rows.append([label, f"{s.end:.4g}", *speeds, waited, f"{mean:.1f}", str(most)])
    return columns(rows)


def _record(s: SimulatedMode, bsp: SimulatedMode) -> dict[str, Any]:
    mean, most = s.staleness
    return {
        "sync": s.name,
        "time": s.end,
        "speed_over_bsp": bsp.end / s.end,
        "speed_over_bsp_in_theory": s.limit,
        "mean_staleness": mean,
        "largest_staleness": most,
        "steps": [g._asdict() for g in s.done],
    }
