"""Resumable: training in a session that can be closed, and opened anew from a Snapshot."""

import gc
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from typing import Any, NoReturn

import numpy as np

from nnmpi.comm import Comm, OtherRankError
from nnmpi.metrics import Sums
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.entries import Entries, load_state
from nnmpi.parallel.model.snapshot import owned
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.stores import stores_of
from nnmpi.run import consistency
from nnmpi.run.session import Hooks, Session
from nnmpi.run.setup import Setup
from nnmpi.run.snapshot import Snapshot, changed

OF_A_SESSION = ("strategy", "optimizer", "task", "part", "model")
"""Attributes that are gone when a session has ended."""


class StepPhase(Enum):
    """What this rank does; an error in a later phase may leave the model half updated."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()
    UPDATING = auto()


class Resumable:
    """The session of a Trainer, and what it has to know to go on in another one."""

    def __init__(self, setup: Setup, comm: Comm, hooks: Hooks) -> None:
        self.config, self.comm = setup.config, comm
        self._setup, self._hooks = setup, hooks
        self.state, self.skipped, self._sums = StepState(), 0, Sums()
        self._first = 0  # the step that `fit` begins with
        self._sessions = 0
        self._steps: Generator[StepResult, None, None] | None = None
        self.stopping = False  # all ranks have agreed to stop
        self._stop_requested = False  # on this rank
        self._phase, self._in_epoch, self._closed = StepPhase.BETWEEN_STEPS, False, True
        self._open()

    def _open(self, snapshot: Snapshot | None = None) -> None:
        """Opens a session, in which the ranks are arranged as the config says."""
        session = Session(self.config, self._setup, self.comm, self._hooks, snapshot)
        self.arrangement, self.task, self.part = session.arrangement, session.task, session.part
        self.strategy, self.optimizer = session.strategy, session.strategy.optimizer
        self.model, self.on = self.task.model, self.task.on
        self._closed, self._sessions = False, self._sessions + 1

    def snapshot(self) -> Snapshot:
        """What this rank needs to go on from here, in copies; every rank calls it, after the same
        step or epoch. No message is sent."""
        self._check_together("snapshot", self._closed)
        position = self.strategy.position
        return Snapshot(
            self.config,
            self.comm.size,
            self.arrangement.measured,
            self.state,
            self.skipped,
            self._sums,
            () if position is None else (position,),
            owned(self.part, self.optimizer, whole=not self.strategy.layout.serves),
        )

    def restore(self, snapshot: Snapshot, **changes: Any) -> None:
        """Go on from a snapshot, with ranks arranged by these options; every rank calls it.

        Each rank has a snapshot of one step, of this Trainer or of another one with the same model,
        data and optimizer. All that the ranks have now is given back first.
        """
        if self._closed:  # whatever has ended the run
            self._in_epoch = self.stopping = self._stop_requested = False
            self._phase = StepPhase.BETWEEN_STEPS
        self._check_together("restore")
        ranks = self.comm.size
        config = all_or_none(self.comm, lambda: changed(self.config, changes, snapshot, ranks))
        consistency.check_snapshot(self.comm, config, snapshot.state)
        self._end_session()
        before, self.config = self.config, config
        try:
            self._open(snapshot)
        except (ValueError, OtherRankError):
            self.config = before
            raise
        self._first, self.state = snapshot.state.step, snapshot.state
        self.skipped, self._sums = snapshot.skipped, snapshot.epoch

    def rearrange(self, **changes: Any) -> None:
        """Go on from here with these options; every rank calls it, after the same step or epoch.

        If the ranks cannot be arranged so, they stay as they are.
        """
        snapshot = self.snapshot()
        try:
            self.restore(snapshot, **changes)
        except (ValueError, OtherRankError):
            if self._closed:
                self._open(snapshot)
            raise

    def _end_session(self) -> None:
        """Gives back what the ranks have of the model, the optimizer and each other."""
        if self._steps is not None:
            self._steps.close()
        self.close()
        for name in OF_A_SESSION:
            vars(self).pop(name, None)
        gc.collect()  # a parameter and its store know each other

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """Within it every rank can read, write and run what it has of the model.

        With ZeRO ranks along dp have parts of the parameters between steps. Here each gets all
        of them, in memory of its own, as from PyTorch's `FSDP.summon_full_params`. So every rank
        enters it, and leaves it before the next step; what is written, each rank writes alike.
        Without ZeRO the parameters are there at all times, and it does nothing.
        """
        with ExitStack() as stack:
            for store in stores_of(self.part.parameters):
                stack.enter_context(store.gathered())
            yield

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """`Optimizer.state_dict` of all ranks, whole, on the first rank; every rank calls it."""
        self._check_together("optimizer_state_dict")
        entries = Entries.of_optimizer(self.optimizer, self.model, self.comm)
        return {entry.place.path: entry.value for entry in entries}

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies what this rank has from a whole state; every rank calls it, with all of it."""
        load_state(self.optimizer, self.model, state, self.comm)

    def close(self) -> None:
        """Free what ranks share; every rank calls it. `fit` does so unless it fails on one rank."""
        if not self._closed:
            self._closed = True
            self.strategy.close()

    def _check_together(self, what: str, is_over: bool = False) -> None:
        """Raises ValueError unless all ranks can do it now, between the same two steps."""
        if is_over:
            instead = ", or set Config.save" if what == "save" else ""
            raise ValueError(f"the run is over: call {what} in on_epoch{instead}")
        if self._in_epoch and not self.arrangement.steps_together:
            raise ValueError(f"ranks make their steps at different times: call {what} in on_epoch")

    def __getattr__(self, name: str) -> NoReturn:
        if name in OF_A_SESSION:
            raise AttributeError(
                f"this Trainer has no {name} since its last restore failed: restore a snapshot"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")
