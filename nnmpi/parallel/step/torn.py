"""TornStep: the step in which a rank was lost; how those that are left finish it, or undo it.

    lost in      sums     agreement     update            settle
    known then   nothing  gradients     decision          decision
    the step is  undone   finished, if one rank that      finished
                          is left knows the decision

Why the step can be finished. A rank knows the decision when it has the sums of all ranks of its
model, and each of these has given its own when its gradients were complete. So if any rank knows
it, every rank of its model has complete gradients, as has every rank with which one of them has
summed squares or scalars apart (ZeRO, memory of a node). Other copies of the model may be in the
midst of their sums, and have the version before.

What a rank computes without messages is never half done on a rank that is left. Of a lost one only
memory of a node is left, with its journal (`stores/journal.py`).

    1  here = torn.seen()                       each rank, without messages
    2  seen = SeenStep.joined(those of all ranks)   over the Comm that was shrunk
    3  torn.finish(seen, comm.members)          each rank, without messages, then a barrier:
       torn.undo()                              what each has is whole, and of `torn.version`
    4  with torn.in_place_of(rank)              for each of torn.lost(comm.members): what it had
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from nnmpi.optim import Optimizer
from nnmpi.parallel.step.kept_buffers import NothingKept
from nnmpi.parallel.step.update import Outcome, Update
from nnmpi.parallel.stores.local import LocalStore


class SeenStep(NamedTuple):
    """What ranks know of the end of a step.

    step       the last one whose gradients are summed on one of them
    used       whether parameters have a gradient on any rank, by path
    decision   what all ranks have agreed on, if one of these knows it: the same on all
    """

    step: int
    used: Mapping[str, bool]
    decision: tuple[float, ...] | None

    @classmethod
    def joined(cls, found: Iterable[Self]) -> Self:
        """What these know together, of the last step that one of them knows."""
        listed = list(found)
        last = [one for one in listed if one.step == max(other.step for other in listed)]
        used = {path: flag for one in last for path, flag in one.used.items()}
        decision = next((one.decision for one in last if one.decision is not None), None)
        return cls(last[0].step, used, decision)


class TornStep:
    """What one rank does about it; nothing here sends a message."""

    def __init__(
        self, update: Update, store: LocalStore, optimizer: Optimizer, buffers: NothingKept
    ) -> None:
        self._update, self._store, self._optimizer = update, store, optimizer
        self._buffers = buffers

    @property
    def version(self) -> int:
        """The number of steps after which values, running sums and buffers here are as they are;
        0 before the first step of this strategy."""
        return max(self._update.version, self._buffers.step)

    @property
    def settled(self) -> bool:
        """Whether the last step here has ended: the loss scale is that of the next one."""
        return self._update.settled

    def seen(self) -> SeenStep:
        """What this rank knows, and what is noted in the memory of its node."""
        update, paths = self._update, [p.place.path for p in self._store.parameters]
        noted = self._store.noted(update.step)
        uses = [one.used for one in noted] + ([] if update.uses is None else [update.uses])
        decided = [update.decision, *(one.decision for one in noted)]
        decision = next((one for one in decided if one is not None), None)
        return SeenStep(
            update.step,
            {path: flag > 0 for path, flag in zip(paths, uses[0], strict=True)} if uses else {},
            None if decision is None else tuple(decision),
        )

    def can_finish(self, seen: SeenStep) -> bool:
        """Whether this rank will have the version after that step if it finishes it."""
        paths = (p.place.path for p in self._store.parameters)
        is_known = seen.decision is not None and all(path in seen.used for path in paths)
        return self._update.version > seen.step or (self._update.step == seen.step and is_known)

    def finish(self, seen: SeenStep, left: Collection[int]) -> Outcome | None:
        """Carries out what was decided, if this rank can: its own part, and those of lost ranks of
        its node for which it stands, if these ranks of the job are left.

        Returns what the step has shown. If another rank is lost meanwhile, it is called again.
        """
        update, decision = self._update, seen.decision
        if decision is None or update.step != seen.step or not self.can_finish(seen):
            return None
        used = [seen.used[p.place.path] for p in self._store.parameters]
        if update.version <= seen.step:
            update.finish(used, decision)
        for rank in () if update.settled else self.lost(left):
            with self.in_place_of(rank):
                update.finish_another(used, decision)
        return Outcome.of(decision)

    def undo(self) -> None:
        """Buffers are as they were before forward passes of a step that this rank has not
        finished."""
        if self.version == self._buffers.step:
            self._buffers.put_back()

    def lost(self, left: Collection[int]) -> Sequence[int]:
        """The lost ranks for which this rank stands, for `in_place_of`."""
        return self._store.lost(left)

    @contextmanager
    def in_place_of(self, rank: int) -> Iterator[None]:
        """Within it this rank's store and optimizer are those of a lost rank of its node."""
        store, optimizer = self._store, self._optimizer
        with store.in_place_of(rank, optimizer.state), optimizer.in_place_of_another():
            yield
