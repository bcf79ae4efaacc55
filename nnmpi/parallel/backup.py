"""Backups: state that only one rank has is copied to the memory of a neighbour every N versions.

    step            k           k + 1                        k + N
    after APPLY     copy of own parts (memory)
                    send ─────► forward, backward ──► all    copy, send ...
                                                    agree
    may go back to  before      before                k      k

The message is sent from a copy, so the step may change the model meanwhile: any poll or wait on
this rank moves the messages. One step later, ranks agree that all have received what they keep, and
from then on recovery may go back to this version. Until then it goes back to the one before, so
there is memory for two.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.comm import Comm
from nnmpi.comm.progress import Work
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.options.terms import duration
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.backups import (
    COUNT,
    VERSIONS_KEPT,
    backed_up,
    needs_backups,
    neighbours,
    steps_between,
)
from nnmpi.parallel.layout import duplicate
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.snapshot import SavedRange, StateRange, bytes_of, dtypes_of, owned


class HeldVersion(NamedTuple):
    """The parts of a model that this rank has of one version: its own, and those that it keeps for
    others.

    about    the object passed with the version
    renewal  how often the backup of this version has been made again
    """

    version: int
    ranges: Sequence[SavedRange]
    about: Any
    renewal: int = 0


def packed_bytes(form: StateRange[str]) -> int:
    """Returns the bytes of a range in memory, as [steps | values | state | state ...]."""
    return COUNT + bytes_of(form)


def rows_of(
    form: StateRange[str], memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Returns views of a range in the bytes of a backup: its step count, its values, and its
    optimizer state by name, which has the dtype of the values."""
    numbers = memory[COUNT:].view(named(form.values))
    values, *state = numbers.reshape(1 + len(form.sums), -1)
    return memory[:COUNT].view(np.int64), values, dict(zip(form.sums, state, strict=True))


AGE = attrgetter("version", "renewal")
"""A sort key: backups that were made later come last."""


class PackedRanges:
    """Memory for consecutive ranges, described by `forms`, and a flag for whether it has been
    filled.

    It is also the `copies` argument of the receive into it, so that it notes when the receive
    completes.
    """

    def __init__(self, forms: Sequence[StateRange[str]]) -> None:
        self._forms, self.is_filled = forms, False
        edges = [*accumulate(map(packed_bytes, forms), initial=0)]
        self.memory = np.zeros(edges[-1], np.uint8)
        ends = zip(forms, pairwise(edges), strict=True)
        self._rows = [rows_of(form, self.memory[start:stop]) for form, (start, stop) in ends]

    def fill(self, ranges: Iterable[SavedRange]) -> None:
        """Copies `ranges`, which must match the forms in order."""
        for (steps, values, state), saved in zip(self._rows, ranges, strict=True):
            span = slice(0, saved.hi - saved.lo)
            steps[0], values[...] = saved.steps, saved.values[span]
            for name, numbers in state.items():
                numbers[...] = saved.sums[name][span]
        self.complete()

    def ranges(self) -> list[SavedRange]:
        """Returns the ranges in this memory, as views; none if it is not filled."""
        pairs = zip(self._forms, self._rows, strict=True) if self.is_filled else ()
        return [StateRange(*form[:6], int(row[0][0]), *row[1:]) for form, row in pairs]

    def ready(self) -> bool:
        """Returns True: a message may arrive at any time."""
        return True

    def complete(self) -> None:
        """Notes that the memory is filled."""
        self.is_filled = True


@dataclass
class VersionMemory:
    """Memory for one version of the model: this rank's own parts, and those it keeps for others."""

    own: PackedRanges
    kept: Mapping[int, PackedRanges]
    version: int = -1
    renewal: int = 0
    about: Any = None

    @classmethod
    def of(
        cls, owned: Sequence[StateRange[str]], kept: Mapping[int, Sequence[StateRange[str]]]
    ) -> Self:
        """Returns memory for ranges of these forms."""
        return cls(PackedRanges(owned), {r: PackedRanges(forms) for r, forms in kept.items()})

    @property
    def ranges(self) -> list[SavedRange]:
        """All ranges that are filled."""
        return [saved for packed in (self.own, *self.kept.values()) for saved in packed.ranges()]

    def clear(self) -> None:
        """Drops the version in it, so that another one can take its place."""
        self.version = -1
        for packed in (self.own, *self.kept.values()):
            packed.is_filled = False


class Backups:
    """The backups of one rank; every rank of `comm`, the Comm of the arrangement, constructs one.

    every   steps between backups; 0: chosen from the cost of a backup and the time between failures
    """

    def __init__(
        self,
        arrangement: Arrangement,
        part: ModelPart,
        optimizer: Optimizer,
        comm: Comm,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        config, rank = arrangement.config, comm.rank
        self.every, self._mtbf = config.backup or 0, duration(config.mtbf)
        self._part, self._optimizer, self._clock = part, optimizer, clock
        variables, backed = arrangement.graph.variables, backed_up(arrangement, rank)
        self._sent = {variables[v].path for v in (*backed.trained, *backed.others)}
        forms = [dtypes_of(held) for held in self._owned()]
        message = [form for form in forms if form.path in self._sent]
        self._length = sum(map(packed_bytes, message))  # ranges that are sent come first in memory
        keepers, asked = neighbours(arrangement.cluster.nodes), gather_objects(comm, message)
        self._keeper = keepers[rank]
        kept = {r: asked[r] for r, keeper in enumerate(keepers) if keeper == rank and asked[r]}
        self._memories = [VersionMemory.of(forms, kept) for _ in range(VERSIONS_KEPT)]
        self._comm, self._works, self._is_under_way = duplicate(comm), list[Work](), False
        self._latest, self._renewal, self._due = -1, 0, 0
        self._cost, self._returned = 0.0, clock()
        self._steps, self._seconds = 0, 0.0  # since the last backup began, without its cost

    def after_step(self, version: int, about: Any) -> None:
        """Makes a backup if one is due, after completing the one that began a step before.

        Every rank calls it before the first step and after each one, with the number of steps made
        so far, and with anything else that belongs to this version, such as counters.
        """
        began = self._clock()
        self._steps, self._seconds = self._steps + 1, self._seconds + began - self._returned
        if self._is_under_way:
            self._finish(began)
        if version >= self._due:
            is_first = self._latest < 0
            self._start(version, about)
            if is_first:  # without it there is nothing to go back to, so it is completed at once
                self._finish(self._clock())
                # with every=0 the next one follows at once, to measure what a backup costs
                self._due = version + (self.every or 1)
        self._returned = self._clock()

    def renew(self, version: int, about: Any) -> None:
        """Makes the first backup; or that of this version again, if there is one, because values
        may have been written since. Every rank calls it before the steps of an epoch. Until it is
        complete there is another one: of the version before or, if there is none, of this one."""
        if self._latest < 0:
            self.after_step(version, about)
        elif self._latest == version:
            if self._is_under_way:
                self._finish(self._clock())
            due, older = self._due, min(self._memories, key=AGE)
            if 0 <= older.version < version:  # keep that one, and not this one as it was
                next(memory for memory in self._memories if memory.version == version).clear()
            self._start(version, about, self._renewal + 1)
            self._finish(self._clock())
            self._due, self._returned = due, self._clock()

    def renewal_of(self, version: int) -> int:
        """How often the backup of this version has been made again."""
        return self._renewal if version == self._latest else 0

    def held(self) -> list[HeldVersion]:
        """Returns this rank's parts of earlier versions, the latest first, as views.

        If the backup of a version is incomplete, this rank may have only its own parts of it.
        """
        versions = [HeldVersion(m.version, m.ranges, m.about, m.renewal) for m in self._memories]
        filled = (held for held in versions if held.version >= 0)
        return sorted(filled, key=AGE, reverse=True)

    def close(self) -> None:
        """Waits for all messages, then frees its Comm; every rank calls it."""
        if self._is_under_way:
            self._finish(self._clock())
        self._comm.free()

    def _owned(self) -> list[SavedRange]:
        """Returns the ranges that this rank owns; those that it sends come first."""
        ranges = owned(self._part, self._optimizer)
        return sorted(ranges, key=lambda saved: saved.path not in self._sent)

    def _start(self, version: int, about: Any, renewal: int = 0) -> None:
        """Copies what this rank owns over the older version, and starts the messages."""
        began = self._clock()
        older, self._latest, self._renewal = min(self._memories, key=AGE), version, renewal
        older.clear()
        older.own.fill(self._owned())
        older.version, older.renewal, older.about = version, renewal, about
        works = [
            self._comm.irecv(packed.memory, r, copies=packed) for r, packed in older.kept.items()
        ]
        if self._length:
            works.append(self._comm.isend(older.own.memory[: self._length], self._keeper))
        self._works, self._is_under_way = works, True
        self._steps, self._seconds, self._cost = 0, 0.0, self._clock() - began

    def _finish(self, began: float) -> None:
        """Completes a backup: waits for its messages, and agrees with all ranks on when the next
        one is due."""
        for work in self._works:
            work.wait()
        cost = self._cost + self._clock() - began
        row = np.array([cost, self._seconds / max(self._steps, 1)])
        self._comm.all_reduce(row, "doubling")
        self._is_under_way, (cost, step) = False, (row / self._comm.size).tolist()
        self._due = self._latest + (self.every or steps_between(cost, step, self._mtbf))


def check_backup(config: Config, comm: Comm) -> None:
    """Raises ValueError if backups are asked for but no rank would survive to use them."""
    if config.backup is not None and not (comm.fault_tolerant or config.dry_run):
        raise ValueError(
            "backup: this job ends when a rank is lost, so nobody could use its backups; start it "
            "with mpirun --with-ft ulfm, or leave backup out"
        )


def backups(
    arrangement: Arrangement, part: ModelPart, optimizer: Optimizer, comm: Comm
) -> Backups | None:
    """Returns the backups that the options ask for; None if nothing would be lost with any one
    rank. Every rank calls it."""
    is_needed = needs_backups(arrangement)
    return Backups(arrangement, part, optimizer, comm, comm.system.clock) if is_needed else None
