"""Simulates ranks that carry out lists of operations: computes when each operation begins and ends.

A rank does one operation after the other. Meanwhile, operations on a lane, such as a link, run
first in, first out:

    rank    B2    B1    B0    FINISH
    lane       SUM2 ──── SUM1 ──── SUM0

A table of arrivals maps a micro-batch to the time at which something arrives, such as a message. An
operation may wait for the entry of its micro-batch in one table, and make an entry in another. The
unit of time is the caller's.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from nnmpi.schedules.lists.passes import message_of
from nnmpi.schedules.lists.race import SENT, STARTS, Race
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import PASSES, Kind, Op


class OfMicro(Protocol):
    """The interface of an operation that belongs to a micro-batch."""

    @property
    def micro(self) -> int:
        """The number of the micro-batch."""


T = TypeVar("T", bound=OfMicro)

AWAITED = {*SENT.values(), *STARTS.values()}
"""The operations of a step for whose end others wait."""

FREE = "free"
"""A lane on which operations do not queue up: all may run at the same time."""


class Cost(NamedTuple):
    """How long an operation takes, and where it runs.

    lane     the lane (such as a link) on which it runs beside the rank; None: on the rank
    beside   seconds for which an operation that runs on the rank also occupies the lane `link`
    """

    seconds: float
    lane: Hashable = None
    beside: float = 0
    link: Hashable = None


class Timing(NamedTuple):
    """The cost of an operation, and tables of arrivals: with the entry that it waits for, and in
    which its end is entered; None: without."""

    cost: Cost
    awaited: dict[int, float] | None = None
    given: dict[int, float] | None = None


TimingOf: TypeAlias = Callable[[int, T], Timing]
"""A function of a rank and an operation."""

CostOf: TypeAlias = Callable[[int, Op], Cost]
"""A function of a rank and an operation of its step; the micro-batch makes no difference."""

Done: TypeAlias = tuple[int, T, Cost, float, float]
"""A simulated operation: its rank, the operation, its cost, and when it begins and ends."""


def timed(lists: Sequence[Sequence[T]], timing: TimingOf[T]) -> Generator[Done[T], None, int]:
    """Simulates ranks that carry out `lists`, one list per rank, each operation as early as
    possible. Operations whose arrivals never come are not yielded, nor are those after them on the
    rank; returns how many these are."""
    clocks: list[float] = [0] * len(lists)
    places, moved = [0] * len(lists), True
    free: list[dict[Hashable, float]] = [{} for _ in lists]  # by lane: when it is free
    while moved:
        moved = False
        for r, ops in enumerate(lists):
            clock, place, lanes = clocks[r], places[r], free[r]
            while place < len(ops):
                op = ops[place]
                cost, awaited, given = timing(r, op)
                if awaited is not None and op.micro not in awaited:
                    break
                seconds, lane, beside, link = cost
                start = clock if awaited is None else max(clock, awaited[op.micro])
                if lane is None:
                    end = start + seconds
                    if beside:
                        lanes[link] = max(lanes.get(link, 0), start) + beside
                        end = max(end, lanes[link])
                    clock = end
                else:
                    start = start if lane is FREE else max(start, lanes.get(lane, 0))
                    end = lanes[lane] = start + seconds
                if given is not None:
                    given[op.micro] = end
                place += 1
                yield r, op, cost, start, end
            moved |= place > places[r]
            clocks[r], places[r] = clock, place
    return sum(map(len, lists)) - sum(places)


def carried_out(steps: Sequence[StepList], cost_of: CostOf) -> Iterator[Done[Op]]:
    """Simulates ranks that carry out their lists. Raises ScheduleError if they wait for each other
    in a circle.

    `steps` has the lists of all ranks of a pipeline, in order, or that of one rank, to which
    messages come at once. Gathers that the previous step has started come first.
    """
    arrivals = defaultdict[tuple[int, Kind, int], dict[int, float]](dict)

    @cache
    def timing(r: int, kind: Kind, stage: int, at: int) -> Timing:
        op, awaited = Op(kind, 0, stage, at), None
        takes = kind in PASSES and len(steps) > 1
        if takes and (message := message_of(op, steps[r].chain, sends=False)):
            awaited = arrivals[message.peer, SENT[message.kind], message.at]
        elif kind in STARTS:
            awaited = arrivals[r, STARTS[kind], at]
        return Timing(cost_of(r, op), awaited, arrivals[r, kind, at] if kind in AWAITED else None)

    lists = [[*(Op(Kind.GATHER, at=b) for b in step.begins), *step.ops] for step in steps]
    if (yield from timed(lists, lambda r, op: timing(r, op.kind, op.stage, op.at))):
        Race([[step] for step in steps]).run()  # raises an error that names the ops that wait
