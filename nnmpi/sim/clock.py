"""A clock for lists of operations: when each one begins and ends, on all ranks.

A rank does one operation after the other. Others go on beside it on a lane, such as a link, first
in, first out:

    rank    B2    B1    B0    FINISH
    lane       SUM2 ──── SUM1 ──── SUM0

What an operation waits for has a place in a table of arrivals, one for each micro-batch. The unit
of time is the caller's.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar


class OfMicro(Protocol):
    """An operation of a micro-batch."""

    @property
    def micro(self) -> int:
        """The number of the micro-batch."""


T = TypeVar("T", bound=OfMicro)

FREE = "free"
"""A lane on which nothing waits for another operation."""


class Timing(NamedTuple):
    """How long an operation takes, and what it waits for.

    seconds   on its lane
    lane      where it goes on while the rank does other operations; None: the rank does it
    awaited   arrivals of what it waits for; None: nothing
    given     arrivals of what it gives, at its end; None: nothing
    beside    seconds for which an operation of the rank, not of a lane, also needs the lane `link`
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
    """Yields the rank, the operation, its begin and its end; each begins as early as what it waits
    for allows. Operations that wait for ever are missing."""
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
