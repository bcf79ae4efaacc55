"""Ranks as threads that run one at a time, in an order that is the same in each run.

What ranks do then follows from the program alone: at which step a rank is when it is killed at its
400th operation, which of two workers is the first at a server, how often a rank polls.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from simulation.case import Case
from simulation.scheduler import SimulatedScheduler

from nnmpi.comm import thread_ranks

T = TypeVar("T")


def run(ranks: int, f: Callable[..., T], *arguments: Any, **options: Any) -> list[T]:
    """Calls f(comm, *arguments) as `thread_ranks.run` does; one in ten turns is another rank's."""
    scheduler = SimulatedScheduler(Case("", order="near"), ranks)
    return thread_ranks.run(ranks, f, *arguments, scheduler=scheduler, **options)
