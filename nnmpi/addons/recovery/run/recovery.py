"""Recovery: after the loss of a rank, arranges the remaining ranks in a new layout and continues
the run.

All remaining ranks meet in a new Comm and compute the same plan (`rank_status.py`): to continue
from the newest version of the model of which they have a complete copy. Each keeps its part of that
version and drops its session (model and communicators); then the ranks that have a place in the new
layout open a new one, and the others wait as spare ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.parallel.fitted_layout import FittedLayout
from nnmpi.addons.recovery.run.keeper import Keeper
from nnmpi.addons.recovery.run.kept import KeptVersions
from nnmpi.addons.recovery.run.layouts import layout_of_job, no_checkpoint
from nnmpi.addons.recovery.run.rank_status import (
    Decision,
    RankStatus,
    RecoveryPlan,
    RunStage,
    agreed,
)
from nnmpi.addons.recovery.run.reopening import go_back, nearest_layout, newest_path, wait
from nnmpi.addons.recovery.run.reported_log import adopt_reported, read_log, runs_in
from nnmpi.addons.recovery.run.run_counters import adopt, counters_now, keep_changes, result_of
from nnmpi.addons.recovery.run.survivors import Survivors
from nnmpi.addons.recovery.run.versions import whole_state
from nnmpi.comm import Comm, OtherRankError, RankLost
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event
from nnmpi.nn.place import StateArray
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.callbacks import load_states, states_of
from nnmpi.run.reported_events import event_position
from nnmpi.run.session import Session
from nnmpi.run.training import (
    StepHook,
    Supervision,
    Supervisor,
    Training,
    arrange,
    load_callbacks,
    prepare,
    tracer_of,
)


class NothingLeftError(AgreedError):
    """Raised if ranks are lost and the model is incomplete, or no layout fits."""

    def __init__(self, why: Exception, directory: str | None) -> None:
        self.checkpoint = newest_path(directory)
        at = self.checkpoint
        rest = f"--resume continues from {shown(at)}" if at else "start again"
        super().__init__(f"a rank was lost, and the others cannot continue: {why}; {rest}")


class Recovery(Supervisor):
    """The Supervisor of a run that continues after the loss of ranks: after each one, it arranges
    the remaining ranks and runs `fit` on. It does not store the Trainer."""

    def __init__(self, comm: Comm) -> None:
        self.survivors, self.fitted = Survivors(comm), ""
        self._is_set_up, self._recoveries = False, list[Event]()  # not reported yet
        self._was_spare = self._had_spare = False  # this rank, or any rank, since the last loss
        self._number = 0  # of the newest session or the next one; equal on all ranks
        self._runs_before = 0  # how many runs the log had before this one
        self._kept = KeptVersions()
        self._decision: Decision | None = None  # of the step in which a rank was lost
        self._tensors: tuple[StateArray, ...] = ()  # of the whole model

    @property
    def is_spare(self) -> bool:
        """True if this rank is spare: it has no place in the layout, and waits."""
        return self.survivors.work is None

    def set_up(self, trainer: Training) -> None:
        """Sets up a Trainer, again after a loss; every rank calls it."""
        comm = self.survivors.all
        layout = FittedLayout(trainer.requested, comm.size, 0, "")
        with suppress(RankLost):
            # lost while MPI started; one rank alone sends no message that would raise RankLost
            if comm.is_abandoned:
                raise RankLost("a rank was lost before the Trainer was made")
            if trainer.requested.elastic:
                layout = layout_of_job(trainer.requested, comm)
                is_other = layout.spare or layout.config != trainer.requested
                self.fitted = layout.why if is_other else ""
            self._arrange_all(trainer, RecoveryPlan(RunStage.SETTING_UP), layout)
            return
        self._recover(trainer)

    def run(self, trainer: Training, body: Callable[[list[Event]], Event]) -> Event:
        """Runs training to its end on the ranks that have work, and returns its result on all
        ranks, spare ones too.

        `body(recoveries)` is the training loop; `recoveries` lists "recovered" events (one for each
        loss) that it is to report. After a loss, the remaining ranks are arranged anew, and `body`
        is called again: it continues from the state that they still have.
        """
        if trainer.comm.fault_tolerant and not self.is_spare:
            self._runs_before = len(runs_in(trainer.config.log))
        while True:
            if self.is_spare:  # a spare rank may be the last one that knows of it
                trainer.run.is_running = True
            with suppress(RankLost):
                return self.survivors.end(lambda: body(self._recoveries))
            self._recover(trainer)  # outside the block: the traceback keeps the old session alive

    def is_start_reported(self, trainer: Training) -> bool:
        """True if the start was reported before a loss, by this or another rank 0."""
        run, log = trainer.run, trainer.config.log
        start, runs = event_position(run.first_step, "start"), self._runs_before
        if self._recoveries and run.reported.events < start and len(runs_in(log)) > runs:
            run.reported.claim(run.first_step, "start")
        return run.reported.events >= start

    def opened_reports(self, trainer: Training, is_new: bool) -> None:
        """Counts the runs in the log, which is open now. A rank that is rank 0 only since a loss
        (`is_new`) reads from the log which events the former one had reported."""
        run, log = trainer.run, trainer.config.log
        is_reported = run.reported.events >= event_position(run.first_step, "start")
        if trainer.comm.fault_tolerant and not self._recoveries and not is_reported:
            self._runs_before = len(runs_in(log))
        if is_new and is_reported and log:
            read_log(run.reported, log, self._runs_before)

    def called(self, trainer: Training, occasion: str) -> None:
        """Records the settings that callbacks have changed on an occasion such as "on_step", so
        that a repeated step makes the same changes."""
        if trainer.comm.fault_tolerant and not trainer.session.is_closed:
            keep_changes(trainer.run, trainer.session.settings, occasion)

    @contextmanager
    def restoring(self, trainer: Training, snapshot: Snapshot) -> Iterator[None]:
        """Returns a context in which a session is replaced by one made from a snapshot. The
        snapshot is kept until all ranks have the new session and its first backup; if a rank is
        lost meanwhile, the others continue from the snapshot."""
        self._keep_snapshot(trainer, snapshot)
        yield
        self._restored(trainer.session)

    def _keep_snapshot(self, trainer: Training, snapshot: Snapshot) -> None:
        """Keeps a snapshot, and the backups of other ranks' state that this rank has."""
        if not trainer.session.is_closed:
            self._tensors = whole_state(trainer.session.model)
            self._kept.keep(trainer.session.kept.backups())
        self._number += 1
        self._kept.keep_snapshot(trainer.run, snapshot, self._number)

    def _restored(self, session: Session) -> None:
        """Makes the new session's first backup; when all ranks have, drops the kept snapshots."""
        session.kept.back_up(session)
        if session.comm.fault_tolerant:
            session.comm.barrier()
        self._kept.clear()

    def opened(self, session: Session) -> None:
        """Gives a new session its Keeper; every rank calls it."""
        session.kept = Keeper(session, self._number)

    def begin_steps(self, session: Session) -> None:
        """Copies or backs up the state, which the epoch's steps will change."""
        session.kept.begin_steps(session)

    def around(self, trainer: Training, hooks: list[StepHook]) -> list[StepHook]:
        """Returns the functions that are called after each step: one that records that they have
        begun, then `hooks`, and at the end one that records that all are done."""
        return [partial(_begun, trainer), *hooks, partial(_done, trainer)]

    # ---- after a loss

    def _recover(self, trainer: Training) -> None:
        """Makes the remaining ranks agree and arrange themselves, again if another is lost
        meanwhile, until each has a new session or is spare."""
        began = trainer.comm.system.clock()
        while True:
            self.survivors.shrink()
            try:
                with suppress(RankLost):
                    self._go_on(trainer, began)
                    return
            except (ValueError, OtherRankError, MemoryError) as error:  # on all ranks
                if not self._is_set_up:
                    raise
                raise NothingLeftError(error, trainer.requested.checkpoint_dir) from error

    def _go_on(self, trainer: Training, began: float) -> None:
        """Agrees with all remaining ranks on a plan to continue after a loss, and carries it out;
        `began` is when this rank noticed the loss."""
        if self._is_set_up:
            trainer.checkpoints.abandon()
        statuses = gather_objects(self.survivors.all, self._status(trainer))
        plan = agreed(statuses)
        self._decision = plan.decision
        if not trainer.session.is_closed:
            self._kept.leave(trainer.session, plan)
        wait(trainer, self.survivors.all)
        layout = nearest_layout(trainer, self.survivors.all)
        self._arrange_all(trainer, plan, layout, statuses)
        run, step = trainer.run, trainer.run.state.step
        # not the steps of ranks that have not completed a restore: it has undone them
        known = (status.counters for status in statuses if status.counters)
        alike = (c for c in known if (c.fit_calls, c.restored) == (run.fit_calls, run.restored))
        made = max((counters.state.step for counters in alike), default=step)
        run.reached = max(run.reached, made)
        event = {
            "event": "recovered",
            "step": step,
            "lost": [*self.survivors.all.lost],
            "ranks": layout.ranks,
            "spare": layout.spare,
            "layout": layout.why,
            "seconds": round(trainer.comm.system.clock() - began, 4),
            "steps_again": max(made - step, 0),
        }
        if not self.is_spare:  # spare ranks report nothing
            self._recoveries.append(event)

    def _arrange_all(
        self,
        trainer: Training,
        plan: RecoveryPlan,
        layout: FittedLayout,
        statuses: Sequence[RankStatus] = (),
    ) -> None:
        """Opens a session on the ranks for which the layout has places, and makes the others spare.
        `statuses` is empty when a run is set up."""
        survivors = self.survivors
        survivors.divide(layout.ranks)
        if plan.stage == RunStage.SETTING_UP:
            prepare(trainer, layout.config, survivors.all, layout.ranks)
        if self.is_spare:
            wait(trainer, survivors.all)
        snapshot = self._kept.snapshot(plan, statuses, survivors, layout.ranks)
        self._take(trainer, plan)
        self._number = max((1 + status.session for status in statuses), default=0)
        survivors.arrange(lambda work: self._open(trainer, plan, layout.config, work, snapshot))
        if snapshot is None and not plan.missing:
            if survivors.spare:
                self._tell_spare(trainer)
            load_callbacks(trainer, survivors.all)
        self._kept.clear()
        self._decision = None
        self._was_spare, self._had_spare = self.is_spare, survivors.spare > 0
        self._is_set_up, trainer.run.is_running = True, plan.stage == RunStage.RUNNING

    def _tell_spare(self, trainer: Training) -> None:
        """If the run was resumed from a checkpoint, sends the facts in it from rank 0 to the spare
        ranks, which have not read it, and sets their counters of the run. Every rank calls it."""
        first = gather_objects(self.survivors.all, trainer.run.resumed)[0]
        if first is not None and self.is_spare:
            trainer.run.resume(first)

    def _open(
        self,
        trainer: Training,
        plan: RecoveryPlan,
        config: Config,
        work: Comm,
        snapshot: Snapshot | None,
    ) -> None:
        """Opens a session on the ranks that are not spare, whose Comm is `work`: from a snapshot,
        or from a checkpoint if no remaining rank has some part of the model."""
        trainer.tracer = tracer_of(config, work)
        if plan.missing:
            go_back(trainer, config, work, plan.missing, were_spare=plan.counters is None)
            return
        arrange(trainer, config, work, snapshot)
        session = trainer.session
        if snapshot is None and self._number:  # after a loss
            self._kept.check_initial(session)
        if trainer.run.state.step:  # before a first step the run can begin again
            session.kept.back_up(session)  # now: what ranks have kept is dropped next
            session.kept.keep_epoch_start(session)

    def _take(self, trainer: Training, plan: RecoveryPlan) -> None:
        """Sets this rank's counters of the run to those from which the plan continues."""
        run, source, decision = trainer.run, plan.source, plan.decision
        if plan.counters is None:
            return
        adopt(run, plan.counters)
        if source and decision and source.version > run.state.step:
            run.unfollowed = result_of(trainer.setup.train, run.state, *decision)
            run.count_step(run.unfollowed)
        trainer.checkpoints.newest = plan.checkpoint
        reported = plan.reported if self._was_spare else None
        adopt_reported(run.reported, reported, plan.repeated_calls)
        if self._was_spare:
            self._runs_before = plan.runs_before
        if self._was_spare and plan.callbacks:
            load_states(trainer.callbacks, plan.callbacks)

    # ---- what the others hear

    def _status(self, trainer: Training) -> RankStatus:
        if not self._is_set_up:
            return RankStatus(RunStage.SETTING_UP, self._number)
        run, session, holds = trainer.run, trainer.session, list[Version]()
        last = None if session.is_closed else session.strategy.last
        if not session.is_closed:
            with suppress(RankLost):  # resharding may communicate with the lost rank
                session.reshard()
            self._tensors = whole_state(session.model)
            holds += session.kept.versions(session)
        holds += self._kept.all()
        return RankStatus(
            RunStage.RUNNING if run.is_running else RunStage.READY,
            self._number,
            counters_now(run),
            run.reported,
            self._runs_before,
            tuple(version.on_paper() for version in holds),
            self._tensors,
            last.pending_version if last else None,
            (last.decision if last else None) or self._decision,
            trainer.checkpoints.newest,
            tuple(states_of(trainer.callbacks)) if self._had_spare else (),
        )


def _begun(trainer: Training, result: StepResult, loss: float) -> None:
    """Records that the functions that follow a step have begun. If a rank is lost before they are
    done, all are repeated, except for events that were already reported."""
    trainer.run.unfollowed = result


def _done(trainer: Training, result: StepResult, loss: float) -> None:
    """Records that the functions that follow a step are done, and makes a backup if one is due."""
    trainer.run.unfollowed = None
    trainer.session.kept.back_up(trainer.session)


SUPERVISION = Supervision(Recovery, layout_of_job, no_checkpoint)
