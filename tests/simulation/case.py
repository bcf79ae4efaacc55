"""Case: all that decides what happens in a simulated run; the same case gives the same run."""

import random
from collections.abc import Sequence
from typing import NamedTuple


class Fault(NamedTuple):
    """A rank is killed, or gets SIGTERM, at its `after`-th operation after it has passed a mark for
    the `nth` time; every rank passes the mark "start" as it begins."""

    rank: int
    mark: str
    nth: int
    after: int


class Sleep(NamedTuple):
    """A rank gets no turn while others can go on: for so many turns, from its `after`-th operation
    on after it has passed a mark for the `nth` time."""

    rank: int
    mark: str
    nth: int
    after: int
    turns: int


class Case(NamedTuple):
    """What happens in a run.

    layout     its name in `LAYOUTS`
    seed       of all decisions
    kills      ranks that are killed
    signals    ranks that get SIGTERM
    order      of turns: "random"; "near", where the same rank goes on nine times of ten; or
               "priority", where the rank with the highest one goes on, and three of them change
    late       the chance that a message arrives some turns after it was matched
    buffered   the chance that a send is complete before its receive is posted, as a small one in
               MPI
    unnoticed  the chance that a rank notices a loss, or a revoked Comm, some turns later
    ghost      the chance that the message of a lost rank is written to its buffer nevertheless; if
               it is 1, complete sends of that rank are received
    asleep     a rank that gets no turn for long
    drawn      decisions that replace those of the seed, 0 after the last of them
    slow       ranks that notice no loss before the network gets a turn
    jumps      when the clock jumps ahead
    cut        the operation of the disk after which the power is cut; 0: it is not cut. The run
               goes on, and another one resumes from what may be left
    longest    the most polls until a helper thread is done, which a slow disk makes many
    """

    layout: str
    seed: int = 0
    kills: tuple[Fault, ...] = ()
    signals: tuple[Fault, ...] = ()
    order: str = "random"
    late: float = 0.0
    buffered: float = 0.0
    unnoticed: float = 0.0
    ghost: float = 0.0
    asleep: Sleep | None = None
    drawn: tuple[int, ...] | None = None
    slow: tuple[int, ...] = ()
    jumps: tuple[Fault, ...] = ()
    cut: int = 0
    longest: int = 6


class Decisions:
    """The decisions of a run, drawn from its seed or replayed; 0 is always the dullest one."""

    def __init__(self, seed: int, replayed: Sequence[int] | None) -> None:
        self.random, self._replayed = random.Random(seed), replayed
        self.drawn: list[int] = []

    def draw(self, n: int, wanted: int | None = None) -> int:
        """A number below n: the one that is wanted, if any, unless decisions are replayed."""
        place, value = len(self.drawn), wanted
        if self._replayed is not None:
            value = min(self._replayed[place], n - 1) if place < len(self._replayed) else 0
        elif value is None:
            value = self.random.randrange(n)
        self.drawn.append(value)
        return value

    def happens(self, chance: float) -> bool:
        """True with this chance; nothing is drawn for a chance of 0 or 1."""
        return chance >= 1 or (chance > 0 and self._is_drawn(chance))

    def _is_drawn(self, chance: float) -> bool:
        return self.draw(2, int(self.random.random() < chance)) == 1
