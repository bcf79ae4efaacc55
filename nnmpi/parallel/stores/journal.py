"""Journal: what a rank notes in memory of its node, so that others finish its update if it is lost.

    begin     the step, and which parameters have a gradient         all gradients are summed
    decide    what all ranks have agreed on                          nothing is changed before
    chunk c   the chunk as it was ─► undo;  count = 2c + 1;  it is changed;  count = 2c + 2

    count odd     the chunk is half done: undo ─► chunk, and it is done again
    count even    chunks 0 to count / 2 - 1 are done, and no other is begun

A process that is killed has carried out its writes up to one of them, in the order of its program.
So what is noted before a change is there if the change is; whoever reads the journal of a lost rank
needs no barrier, only that the rank is gone. Another rank that carries on writes to the same
journal, and may be lost in its turn.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.backend import Array
from nnmpi.parallel.arrangement.flat_buffer import HEAD, chunk_length

STEP, COUNT, IS_DECIDED = 0, 1, 2
"""Where a record has what; behind it are the decision, and the flags of parameters."""


class Noted(NamedTuple):
    """What a rank has noted of a step: whether each parameter has a gradient on any rank, and what
    was agreed on."""

    used: tuple[bool, ...]
    decision: tuple[float, ...] | None


class NoJournal:
    """Nobody can finish the update of this rank."""

    def begin(self, step: int, used: Sequence[float]) -> None:
        """All gradients of a step are summed; these parameters have one on any rank."""

    def decide(self, decision: Sequence[float]) -> None:
        """All ranks have agreed on this; values change from here on."""

    def noted(self, step: int) -> Noted | None:
        """What was noted of a step."""
        return None

    def again(self) -> None:
        """The chunks of a step are gone through again, from the first one on."""

    def chunks(self, arrays: Sequence[Array]) -> Iterator[slice]:
        """The chunks of arrays of one length that are not done; who takes one changes it in all."""
        yield slice(None)


NO_JOURNAL = NoJournal()


class Journal(NoJournal):
    """The journal of one rank, in memory that all ranks of its node see.

    record     its `record_length` numbers of 8 bytes (`arrangement/flat_buffer.py`)
    decisions  how many of these are a decision
    undo       memory for a chunk of each array that changes at a time, one behind the other
    """

    def __init__(self, record: Array, decisions: int, parameters: int, undo: Array) -> None:
        flags = HEAD + decisions
        self._counts, self._is_decided = record[:IS_DECIDED].view(np.int64), record[IS_DECIDED:]
        self._decision, self._used = record[HEAD:flags], record[flags : flags + parameters]
        self.undo, self._next = undo, 0
        self._counts[STEP] = -1

    def begin(self, step: int, used: Sequence[float]) -> None:
        counts = self._counts
        counts[STEP] = -1  # of no step, until all of it is there
        self._is_decided[0], self._used[...] = 0, used
        counts[COUNT] = self._next = 0
        counts[STEP] = step

    def decide(self, decision: Sequence[float]) -> None:
        self._decision[...] = decision
        self._is_decided[0] = 1

    def noted(self, step: int) -> Noted | None:
        if self._counts[STEP] != step:
            return None
        used = tuple(bool(flag) for flag in self._used)
        return Noted(used, tuple(self._decision.tolist()) if self._is_decided[0] else None)

    def again(self) -> None:
        self._next = 0

    def chunks(self, arrays: Sequence[Array]) -> Iterator[slice]:
        n, counts, undo = chunk_length(arrays[0].dtype), self._counts, self.undo
        for lo in range(0, len(arrays[0]), n):
            c, self._next = self._next, self._next + 1
            if counts[COUNT] > 2 * c + 1:
                continue
            part = slice(lo, lo + n)
            own = [array[part] for array in arrays]
            kept = [undo[i * n : i * n + len(row)] for i, row in enumerate(own)]
            is_half_done = counts[COUNT] == 2 * c + 1
            for row, copy in zip(own, kept, strict=True):
                if is_half_done:
                    row[...] = copy
                else:
                    copy[...] = row
            counts[COUNT] = 2 * c + 1
            yield part
            counts[COUNT] = 2 * c + 2
