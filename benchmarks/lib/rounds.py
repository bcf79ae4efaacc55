"""Comparing runs: interleaved rounds of several jobs, and ratios with their quartiles."""

from collections.abc import Mapping
from typing import TypeVar

from lib.jobs import Job, Task
from lib.timing import Row, Sample, Spread

Key = TypeVar("Key")


def ratio_of(spread: Spread, against: str) -> Row:
    """The columns of a row that has a ratio."""
    return {
        "ratio": spread.median,
        "ratio_low": spread.low,
        "ratio_high": spread.high,
        "against": against,
    }


def interleaved(
    firsts: Mapping[Key, tuple[Job, Task]], rounds: int, seconds: float
) -> dict[Key, list[Sample]]:
    """What a step of each case takes in each round: A B C A B C ...

    The first tasks warm up. Timed ones have as many steps as take about `seconds`, a multiple of
    the steps of the first.
    """
    tasks = {}
    for key, (job, first) in firsts.items():
        job.run(first)
        times = seconds / job.run(first) / first.steps
        tasks[key] = job, first._replace(steps=first.steps * max(1, round(times)))
    found: dict[Key, list[Sample]] = {key: [] for key in tasks}
    for _ in range(rounds):
        for key, (job, task) in tasks.items():
            found[key].append(job.sample(task))
    return found
