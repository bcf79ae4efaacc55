"""Journal: what a rank notes in memory of its node, so that others finish its update if it is lost.

    begin     the step, and which parameters have a gradient         all gradients are summed
    decide    what all ranks have agreed on                          nothing is changed before
    undo      how many numbers are changed, and a copy of those that are half changed

What a step changes is counted through, from its first number to its last. The kernel that changes
numbers notes them, a block at a time (`kernels/undo.py`); who goes on begins where it has ended.

A process that is killed has carried out its writes up to one of them, in the order of its program.
So what is noted before a change is there if the change is; whoever reads the journal of a lost rank
needs no barrier, only that the rank is gone. Another rank that carries on writes to the same
journal, and may be lost in its turn.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import undo
from nnmpi.parallel.arrangement.flat_buffer import HEAD

STEP, IS_DECIDED = 0, 1
"""Where a record has what; behind it are the decision, and the flags of parameters."""


class Noted(NamedTuple):
    """What a rank has noted of a step: whether each parameter has a gradient on any rank, and what
    was agreed on."""

    used: tuple[bool, ...]
    decision: tuple[float, ...] | None


class NoJournal:
    """Nobody can finish the update of this rank.

    undo   memory in which an update keeps what it changes, if it is to
    """

    undo: tuple[Array, ...] = ()

    def begin(self, step: int, used: Sequence[float]) -> None:
        """All gradients of a step are summed; these parameters have one on any rank."""

    def decide(self, decision: Sequence[float]) -> None:
        """All ranks have agreed on this; values change from here on."""

    def noted(self, step: int) -> Noted | None:
        """What was noted of a step."""
        return None

    def again(self) -> None:
        """The numbers of a step are gone through again, from the first one on."""

    def rest(self, n: int) -> slice:
        """What is not done of the next n numbers that the step changes."""
        return slice(0, n)


NO_JOURNAL = NoJournal()


class Journal(NoJournal):
    """The journal of one rank, in memory that all ranks of its node see.

    record     its `record_length` numbers of 8 bytes (`arrangement/flat_buffer.py`)
    decisions  how many of these are a decision
    memory     `undo_length` numbers, to undo what is half changed
    """

    def __init__(self, record: Array, decisions: int, parameters: int, memory: Array) -> None:
        flags = HEAD + decisions
        self._step, self._is_decided = record[:IS_DECIDED].view(np.int64), record[IS_DECIDED:HEAD]
        self._decision, self._used = record[HEAD:flags], record[flags : flags + parameters]
        self.undo, self._next = (memory,), 0
        self._step[0] = -1

    def begin(self, step: int, used: Sequence[float]) -> None:
        self._step[0] = -1  # of no step, until all of it is there
        self._is_decided[0], self._used[...] = 0, used
        undo.note(*self.undo)[0] = self._next = 0
        self._step[0] = step

    def decide(self, decision: Sequence[float]) -> None:
        self._decision[...] = decision
        self._is_decided[0] = 1

    def noted(self, step: int) -> Noted | None:
        if self._step[0] != step:
            return None
        used = tuple(bool(flag) for flag in self._used)
        return Noted(used, tuple(self._decision.tolist()) if self._is_decided[0] else None)

    def again(self) -> None:
        self._next = 0

    def rest(self, n: int) -> slice:
        at, self._next = self._next, self._next + n
        return slice(min(undo.done(*self.undo) - at, n), n)
