"""Simulates ranks that carry out lists of operations: computes when each operation begins and ends.

A rank does one operation after the other. Meanwhile, operations on a lane, such as a link, run
first in, first out:

    rank    B2    B1    B0    FINISH
    lane       SUM2 ──── SUM1 ──── SUM0

A table of arrivals maps a micro-batch to the time at which something arrives, such as a message. An
operation may wait for the entry of its micro-batch in one table, and make an entry in another. The
unit of time is the caller's.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar


class OfMicro(Protocol):
    """The interface of an operation that belongs to a micro-batch."""

    @property
    def micro(self) -> int:
        """The number of the micro-batch."""


T = TypeVar("T", bound=OfMicro)

FREE = "free"
"""A lane on which operations do not queue up: all may run at the same time."""


class Timing(NamedTuple):
    """How an operation is timed: how long it takes, where it runs, what it waits for, and what
    waits for it.

    seconds   how long the operation takes
    lane      the name of the lane (a resource such as a link) on which it runs while the rank does
              other operations; None: it runs on the rank
    awaited   the table of arrivals with the entry that it waits for; None: it does not wait
    given     the table of arrivals in which its end is entered; None: no table
    beside    seconds for which an operation that runs on the rank also occupies the lane `link`
    link      the name of a lane; None if `beside` is 0
    """

    seconds: float
    lane: Hashable = None
    awaited: dict[int, float] | None = None
    given: dict[int, float] | None = None
    beside: float = 0
    link: Hashable = None


def timed(
    lists: Sequence[Sequence[T]], timing: Callable[[int, T], Timing]
) -> Iterator[tuple[int, T, float, float]]:
    """Simulates ranks that carry out the operations in `lists`, one list per rank; yields (rank,
    operation, begin, end).

    `timing(rank, operation)` is the Timing of an operation. Each begins as early as possible.
    Operations whose arrivals never come are not yielded, nor are those after them on the rank.
    """
    clocks: list[float] = [0] * len(lists)
    places, moved = [0] * len(lists), True
    free: list[dict[Hashable, float]] = [{} for _ in lists]  # by lane: when it is free
    while moved:
        moved = False
        for r, ops in enumerate(lists):
            clock, place, lanes = clocks[r], places[r], free[r]
            while place < len(ops):
                op = ops[place]
                seconds, lane, awaited, given, beside, link = timing(r, op)
                if awaited is not None and op.micro not in awaited:
                    break
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
                yield r, op, start, end
            moved |= place > places[r]
            clocks[r], places[r] = clock, place
