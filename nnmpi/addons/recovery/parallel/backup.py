"""Backups: every N steps, state that only one rank has is copied to the memory of a neighbour.

    step            k           k + 1                        k + N
    after APPLY     copy of own parts (memory)
                    send ─────► forward, backward ──► all    copy, send ...
                                                    agree
    backup in use   an older    an older              k      k

The last line says to which step all ranks go back if a rank is lost at that time. The message is
sent from a copy, so later steps may change the model meanwhile; any call that makes progress with
messages on this rank also moves this one. One step later, ranks agree that all have received their
messages. There is memory for two versions of the state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.addons.recovery.parallel.backups_on_paper import (
    VERSIONS_KEPT,
    backed_up,
    needs_backups,
    neighbours,
    steps_between,
)
from nnmpi.arrays.dtypes import named
from nnmpi.comm import Comm
from nnmpi.comm.progress import Work
from nnmpi.nn.place import StateArray
from nnmpi.options.config import Config
from nnmpi.options.value_forms import duration
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.state_on_paper import Holders
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.layout import duplicate


class Version(NamedTuple):
    """The arrays that a rank has of the training state after a certain step: its own, and backups
    that it keeps for other ranks.

    version   the number of steps after which the state had these values
    about     counters and other values beside the arrays, to be restored with them
    renewal   how often the backup of this version has been repeated, since the state has changed
    session   the number of the session: the part of a run between two losses of ranks
    """

    version: int
    arrays: Sequence[StateArray]
    about: Any
    renewal: int = 0
    session: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """(version, session, renewal): arrays of several ranks with equal keys are parts of the
        same state."""
        return self.version, self.session, self.renewal

    def on_paper(self) -> "Version":
        """Returns a copy with descriptions in place of arrays, to be sent."""
        return self._replace(arrays=tuple(x.on_paper() for x in self.arrays))


AGE = attrgetter("version", "renewal")
"""A sort key: the latest backup comes last."""


class PackedArrays:
    """One piece of memory for the elements of several arrays, one after the other, with a flag that
    says whether it is filled.

    A receive into this memory gets the object as its argument `copies`: it asks `ready()` before
    the message may arrive, and calls `complete()`, which sets the flag, when it has arrived.
    """

    def __init__(self, arrays: Sequence[StateArray]) -> None:
        self.is_filled, edges = False, [*accumulate((x.nbytes for x in arrays), initial=0)]
        self.memory = np.zeros(edges[-1], np.uint8)
        parts = (self.memory[start:stop] for start, stop in pairwise(edges))
        self._rows = [part.view(named(x.dtype)) for x, part in zip(arrays, parts, strict=True)]
        self._arrays = [x.holding(row) for x, row in zip(arrays, self._rows, strict=True)]

    def fill(self, arrays: Iterable[StateArray]) -> None:
        """Copies the elements of arrays with the constructor's ranges, in the same order."""
        for row, x in zip(self._rows, arrays, strict=True):
            row[...] = x.elements()
        self.complete()

    def arrays(self) -> Sequence[StateArray]:
        """Returns the arrays in this memory as views; nothing if the memory is not filled."""
        return self._arrays if self.is_filled else ()

    def ready(self) -> bool:
        """Returns True: a message may be received into this memory at any time."""
        return True

    def complete(self) -> None:
        """Marks this memory as filled; called when a message has been received into it."""
        self.is_filled = True


@dataclass
class VersionMemory:
    """Memory for one backup of the training state: a Version's, with -1 as `version` while there is
    none.

    own       copies of this rank's own arrays
    kept      a dict: another rank -> copies of its arrays, which this rank keeps for it
    """

    own: PackedArrays
    kept: Mapping[int, PackedArrays]
    version: int = -1
    renewal: int = 0
    about: Any = None

    @classmethod
    def of(cls, owned: Sequence[StateArray], kept: Mapping[int, Sequence[StateArray]]) -> Self:
        """Returns memory for one backup, with room for this rank's arrays `owned`, and for arrays
        of other ranks: `kept` is a dict, rank -> its arrays that this rank keeps."""
        return cls(PackedArrays(owned), {r: PackedArrays(arrays) for r, arrays in kept.items()})

    @property
    def arrays(self) -> list[StateArray]:
        """The arrays of this rank and of other ranks, where their memory is filled."""
        return [x for packed in (self.own, *self.kept.values()) for x in packed.arrays()]

    def clear(self) -> None:
        """Discards the backup in this memory, so that the next one can be stored in it."""
        self.version = -1
        for packed in (self.own, *self.kept.values()):
            packed.is_filled = False


class Backups:
    """Makes the backups of one rank: sends its state to another rank's memory, and keeps that of
    others. Every rank creates one at the same time; `comm` is the Comm of all ranks of the
    arrangement. It keeps no reference to the arrays of the state, which methods get as `state`.

    holders   an index of which ranks have which arrays
    every     steps between backups; 0: computed from the cost of a backup and the time between
              failures
    """

    def __init__(
        self,
        arrangement: Arrangement,
        state: Iterable[StateArray],
        holders: Holders,
        comm: Comm,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        config, rank = arrangement.config, comm.rank
        self.every, self._mtbf = config.backup or 0, duration(config.mtbf)
        self._clock = clock
        asked = [backed_up(arrangement, r, holders) for r in range(comm.size)]
        self._sent = {x.range for x in asked[rank]}
        owned = [x.on_paper() for x in self._owned(state)]
        self._length = sum(x.nbytes for x in asked[rank])  # what is sent comes first in memory
        keepers = neighbours(arrangement.cluster.nodes)
        self._keeper = keepers[rank]
        kept = {r: asked[r] for r, keeper in enumerate(keepers) if keeper == rank and asked[r]}
        self._memories = [VersionMemory.of(owned, kept) for _ in range(VERSIONS_KEPT)]
        self._comm, self._works, self._is_under_way = duplicate(comm), list[Work](), False
        self._latest, self._renewal, self._due = -1, 0, 0
        self._cost, self._returned = 0.0, clock()
        self._steps, self._seconds = 0, 0.0  # since the last backup began, without its cost
        self._step = 0.0  # the mean seconds of these steps, or of those before, if there are none

    def after_step(self, version: int, about: Any, state: Iterable[StateArray]) -> None:
        """Makes a backup if one is due, and completes the backup that was begun a step before.

        Every rank calls it before the first step and after each step, with the number of steps so
        far (`version`), and values to restore beside the state, such as counters (`about`).
        """
        began = self._clock()
        self._steps, self._seconds = self._steps + 1, self._seconds + began - self._returned
        self._step = self._seconds / self._steps
        if self._is_under_way:
            self._finish(began)
        if version >= self._due:
            is_first = self._latest < 0
            self._start(version, about, state)
            if is_first:  # without it there is nothing to go back to, so it is completed at once
                self._finish(self._clock())
                # with every=0 the next one follows at once, to measure what a backup costs
                self._due = version + (self.every or 1)
        self._returned = self._clock()

    def renew(self, version: int, about: Any, state: Iterable[StateArray]) -> None:
        """Repeats the backup of the state after `version` steps, since the state may have changed
        (for example by a callback), or makes the first backup. `about` has other values to restore,
        such as counters.

        Every rank calls it before the steps of an epoch. Until the new backup is complete, an older
        one stays valid: that of an earlier step or, if there is none, the one that is repeated.
        """
        if self._latest < 0:
            self.after_step(version, about, state)
        elif self._latest == version:
            if self._is_under_way:
                self._finish(self._clock())
            due, older = self._due, min(self._memories, key=AGE)
            if 0 <= older.version < version:  # keep that one, and not this one as it was
                next(memory for memory in self._memories if memory.version == version).clear()
            self._start(version, about, state, self._renewal + 1)
            self._finish(self._clock())
            self._due, self._returned = due, self._clock()

    def renewal_of(self, version: int) -> int:
        """Returns how often the backup of this version has been repeated, as the state changed
        between two steps; of two copies, the one repeated more often is newer."""
        return self._renewal if version == self._latest else 0

    def held(self) -> list[Version]:
        """Returns the training states in this rank's backups, the latest first; arrays are views.
        Of an incomplete one it may have only its own arrays."""
        versions = [Version(m.version, m.arrays, m.about, m.renewal) for m in self._memories]
        filled = (held for held in versions if held.version >= 0)
        return sorted(filled, key=AGE, reverse=True)

    def close(self) -> None:
        """Waits for all messages of backups, then frees the Comm; every rank calls it."""
        if self._is_under_way:
            self._finish(self._clock())
        self._comm.free()

    def _owned(self, state: Iterable[StateArray]) -> list[StateArray]:
        """Returns this rank's state as it is stored, sent arrays first."""
        return sorted(state, key=lambda x: x.range not in self._sent)

    def _start(
        self, version: int, about: Any, state: Iterable[StateArray], renewal: int = 0
    ) -> None:
        """Copies this rank's state to the older of its two backups, and starts the messages."""
        began = self._clock()
        older, self._latest, self._renewal = min(self._memories, key=AGE), version, renewal
        older.clear()
        older.own.fill(self._owned(state))
        older.version, older.renewal, older.about = version, renewal, about
        works = [
            self._comm.irecv(packed.memory, r, copies=packed) for r, packed in older.kept.items()
        ]
        if self._length:
            works.append(self._comm.isend(older.own.memory[: self._length], self._keeper))
        self._works, self._is_under_way = works, True
        self._steps, self._seconds, self._cost = 0, 0.0, self._clock() - began

    def _finish(self, began: float) -> None:
        """Waits for a backup's messages, from the time `began` on, and agrees with all ranks when
        the next is due."""
        for work in self._works:
            work.wait()
        cost = self._cost + self._clock() - began
        row = np.array([cost, self._step])
        self._comm.all_reduce(row, "doubling")
        self._is_under_way, (cost, step) = False, (row / self._comm.size).tolist()
        self._due = self._latest + (self.every or steps_between(cost, step, self._mtbf))


def check(config: Config, comm: Comm) -> None:
    """Raises ValueError if backups are requested in a job that ends with the first lost rank. Every
    rank calls it."""
    if not comm.fault_tolerant:
        message = (
            "backup: this job ends when a rank is lost, so nobody could use its backups; start it "
            "with mpirun --with-ft ulfm, or leave backup out"
        )
        comm.agree(ValueError(message))


def backups(arrangement: Arrangement, state: Iterable[StateArray], comm: Comm) -> Backups | None:
    """Returns the Backups object that the options request; None if none are requested, or if the
    loss of one rank would lose no state. Every rank calls it."""
    if arrangement.config.backup is None:
        return None
    held = [x.on_paper() for x in state]
    holders = Holders(gather_objects(comm, held))
    is_needed = needs_backups(arrangement, holders)
    return Backups(arrangement, held, holders, comm, comm.system.clock) if is_needed else None


CHECKS = Checks(job=check)
