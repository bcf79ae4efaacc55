"""LastStep: what a rank knows of its last step, from which others go on if a rank is lost.

    lost in      forward, backward, sums     agreement            update
    version      before the step             before the step      after it
    may be made  -                           as others decided    -

A rank updates parameters without messages once it knows what all ranks have agreed on, so each rank
has all of a version. Some may have the next one, others the one before; those that know all sums
can make the update too, where one rank knows the decision. If that makes no whole model, because
the part of the lost rank is nowhere, no rank makes it: the others have the version before.
"""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.arrays.backend import Array
from nnmpi.data import Load
from nnmpi.nn import Module
from nnmpi.parallel.step.update import Update


class LastStep:
    """The last step of one rank; nothing here sends a message."""

    def __init__(self, update: Update, model: Module) -> None:
        self._update = update
        self._modules = [module for module in model.modules() if module._buffers]
        self._before: list[tuple[Module, str, Array]] = []  # buffers as they were when it began
        self._begun = 0  # the steps before it

    def kept(self, loads: Iterable[Load], step: int) -> Iterator[Load]:
        """The batches of steps, from that one on: before each is made, copies of running statistics
        and of other buffers are kept, which forward passes move."""
        for self._begun, load in enumerate(loads, step):
            both = ((module, name) for module in self._modules for name in module._buffers)
            self._before = [(module, name, getattr(module, name).copy()) for module, name in both]
            yield load

    @property
    def version(self) -> int:
        """The number of steps after which values and optimizer state here are as they are; 0 before
        the first one here."""
        return self._update.version

    @property
    def may_make(self) -> int | None:
        """The version that this rank can make, as it knows all sums and has updated nothing."""
        return self._update.summed if self._update.summed > self._update.version else None

    @property
    def decision(self) -> tuple[int, tuple[float, ...]] | None:
        """The number of steps and all ranks' decision on the last one; None if not known here."""
        decided = self._update.decision
        return None if decided is None else (self._update.summed, tuple(decided))

    def make(self, decision: Sequence[float]) -> None:
        """Make the update that all ranks have agreed on."""
        self._update.carry_out(decision)

    def restore_buffers(self) -> None:
        """Buffers are as they were before a step of which nothing was updated."""
        if self._update.version <= self._begun:
            for module, name, array in self._before:
                getattr(module, name)[...] = array
