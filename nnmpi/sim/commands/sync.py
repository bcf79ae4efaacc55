"""The subcommand `sync` of `python -m nnmpi.simulate`: BSP, SSP and ASP with slow workers."""

import argparse
import json
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


class Answer(NamedTuple):
    """One mode: what the simulation gives, and what theory allows over BSP."""

    name: str
    title: str
    done: list[Gradient]
    limit: float

    @property
    def end(self) -> float:
        """When the last gradient is there."""
        return self.done[-1].end


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


def run(options: argparse.Namespace) -> str:
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
    answers = [_answer(name, staleness, delays, steps) for name in MODES]
    shown = [a for a in answers if options.sync in (None, a.name)]
    timelines = [synchrony.timeline(a.done, p, a.title) for a in shown]
    if options.svg:
        options.svg.write_text(svg(timelines, _heading(options)), encoding="utf-8")
    if options.json:
        return json.dumps([_record(a, answers[0]) for a in shown], indent=2)
    drawn = draw(timelines) if max(a.end for a in shown) <= WIDTH else _no_room(steps)
    return f"{_heading(options)}\n{_table(shown, answers[0])}\n\n{drawn}"


def _answer(name: str, staleness: int, delays: Sequence[Delay], steps: int) -> Answer:
    mode, p = MODES[name], len(delays)
    done = synchrony.simulate(
        mode.bound(staleness), lambda w, step: delays[w].factor(step), p, p * steps
    )
    ahead = f"{staleness} step{'s' * (staleness != 1)}"
    label = f"{name} {staleness}" if "{}" in mode.about else name
    title = f"{label}: {mode.about.format(ahead)}"
    return Answer(name, title, done, synchrony.bsp_time(delays) / mode.time(delays))


def _heading(options: argparse.Namespace) -> str:
    slow = [f"--slow-rank {options.slow_rank}"] * bool(options.slow_rank)
    slow += [f"--jitter {options.jitter}"] * bool(options.jitter)
    who = " and ".join(slow) or "all alike"
    p, steps = options.workers, options.steps
    return f"{p} worker{'s' * (p > 1)}, {p * steps} gradients; {who}; a usual step takes 1"


def _staleness(a: Answer) -> tuple[float, int]:
    """Mean and maximum; BSP applies the gradients of a step as one sum, so that none is stale."""
    if a.name == "bsp":
        return 0.0, 0
    found = [g.staleness for g in a.done]
    return sum(found) / len(found), max(found)


def _table(shown: Sequence[Answer], bsp: Answer) -> str:
    rows = [["", "time", "speed over bsp", "in theory", "waiting", "mean staleness", "largest"]]
    for a in shown:
        mean, most = _staleness(a)
        share = synchrony.waited(a.done, 1 + max(g.worker for g in bsp.done))
        speeds = f"{bsp.end / a.end:.2f}", f"{a.limit:.2f}"
        label = a.title.split(":")[0]
        rows.append([label, f"{a.end:.4g}", *speeds, f"{share:.0%}", f"{mean:.1f}", str(most)])
    return columns(rows)


def _record(a: Answer, bsp: Answer) -> dict[str, Any]:
    mean, most = _staleness(a)
    return {
        "sync": a.name,
        "time": a.end,
        "speed_over_bsp": bsp.end / a.end,
        "speed_over_bsp_in_theory": a.limit,
        "mean_staleness": mean,
        "largest_staleness": most,
        "steps": [g._asdict() for g in a.done],
    }


def _no_room(steps: int) -> str:
    return f"A drawing of {steps} steps has no room as text: take fewer --steps, or --svg FILE."
