"""Simulated pipelines: as text for people, as JSON objects and pictures for others."""

from typing import Any, NamedTuple

from nnmpi.schedules import SCHEDULES, programs
from nnmpi.sim.pipeline import Costs, Simulation, simulate
from nnmpi.sim.show import columns
from nnmpi.sim.timeline import draw

MIN_VALUE, MAX_VALUE = 1e-30, 1e30  # of times, so that no sum or ratio of them overflows
MAX_PASSES = 100_000  # forward passes of all stages: a simulation takes a few seconds


class Question(NamedTuple):
    """What is simulated; forward and backward are of one rank and one micro-batch."""

    ranks: int
    micro_batches: int
    virtual_stages: int | None = None  # of schedules that take several a rank; 2 if not given
    forward: float = 1
    backward: float = 2
    send: float = 0
    recompute: bool = False

    def stages_of(self, name: str) -> int:
        """The stages a rank has under a schedule."""
        if not SCHEDULES[name].virtual:
            return 1
        return 2 if self.virtual_stages is None else self.virtual_stages


class Answer(NamedTuple):
    """One schedule: what the simulation gives, and the bubble of its formula, if that holds."""

    name: str
    stages: int  # of a rank
    result: Simulation
    formula: float | None


def answer(name: str, q: Question) -> Answer:
    """Simulate one schedule, whose question has been checked."""
    schedule, v = SCHEDULES[name], q.stages_of(name)
    p, m = q.ranks, q.micro_batches
    bubble = schedule.bubble(p, m, v)
    result = simulate(
        programs(schedule, p, m, v, q.recompute), Costs.uniform(p, v, q.forward, q.backward, q.send)
    )
    what = f"{name}, {v} stages a rank" if v > 1 else name
    title = f"{what}: {schedule.about}; bubble {result.bubble:.1%}"
    result = result._replace(timeline=result.timeline._replace(title=title))
    return Answer(name, v, result, None if bubble is None else float(bubble))


def check(name: str, q: Question) -> None:
    """Raises ValueError for numbers out of range of a schedule or of a simulation."""
    v = q.stages_of(name)
    SCHEDULES[name].check(q.ranks, q.micro_batches, v)
    for what, value in (("forward", q.forward), ("backward", q.backward), ("send", q.send)):
        if value and not MIN_VALUE <= value <= MAX_VALUE:
            raise ValueError(
                f"{what} {value} must be 0, or a number from {MIN_VALUE:g} to {MAX_VALUE:g}"
            )
    if not q.forward + q.backward:
        raise ValueError("forward and backward are both 0: give one of them a time")
    passes = q.ranks * v * max(q.micro_batches, q.ranks)  # fewer do not fill the pipeline
    if passes > MAX_PASSES:
        raise ValueError(
            f"{q.ranks * v} stages and {q.micro_batches} micro-batches, counted as at least one a "
            f"rank, are {passes} forward passes, more than {MAX_PASSES}: take fewer"
        )


def heading(what: str, q: Question) -> str:
    """The numbers of a question."""
    ranks = "1 rank" if q.ranks == 1 else f"{q.ranks} ranks"
    micro = "1 micro-batch" if q.micro_batches == 1 else f"{q.micro_batches} micro-batches"
    again = ", recomputed" if q.recompute else ""
    times = f"forward {q.forward:g}, backward {q.backward:g}, send {q.send:g}"
    return f"{what}: {ranks}, {micro}\n{times}{again}"


def report(a: Answer, q: Question) -> str:
    """One schedule: its figures, its ranks, its timeline."""
    schedule, result = SCHEDULES[a.name], a.result
    what = f"{a.name}, {a.stages} stages a rank" if a.stages > 1 else a.name
    value = f"holds {schedule.holds}" if a.formula is None else f"= {_ratio(a.formula)}"
    figures = [
        heading(what, q),
        f"time      {result.makespan:.6g}",
        f"bubble    {_ratio(result.bubble)} of the time of computation",
        f"formula   {schedule.formula} {value}",
    ]
    rows = [["rank", "busy", "idle", "micro-batches held", "activations held"]]
    for r, busy in enumerate(result.busy):
        idle = result.makespan - busy
        rows.append([f"{r}", f"{busy:.6g}", f"{idle:.6g}", f"{result.live[r]}",
                     f"{result.memory[r]:.4g}"])  # fmt: skip
    picture = draw([result.timeline._replace(title="")])
    return "\n\n".join(["\n".join(figures), columns(rows), picture])


def table(answers: list[Answer], q: Question) -> str:
    """Several schedules side by side; what ranks hold is that of the rank with most."""
    rows = [["schedule", "time", "bubble", "formula", "", "micro-batches held", "activations held"]]
    for a in answers:
        rows.append([
            f"{a.name}, {a.stages} stages a rank" if a.stages > 1 else a.name,
            f"{a.result.makespan:.6g}",
            _ratio(a.result.bubble),
            "-" if a.formula is None else _ratio(a.formula),
            SCHEDULES[a.name].formula,
            f"{max(a.result.live)}",
            f"{max(a.result.memory):.4g}",
        ])  # fmt: skip
    return f"{heading('pipelines', q)}\n{columns(rows)}"


def _ratio(x: float) -> str:
    return f"{x:.4g}"


def record(a: Answer, q: Question) -> dict[str, Any]:
    """One schedule as a JSON object."""
    return {
        "schedule": a.name,
        **q._asdict(),
        "virtual_stages": a.stages,
        "time": a.result.makespan,
        "bubble": a.result.bubble,
        "formula": {"formula": SCHEDULES[a.name].formula, "bubble": a.formula},
        "busy": a.result.busy,
        "micro_batches_held": a.result.live,
        "activations_held": a.result.memory,
    }
