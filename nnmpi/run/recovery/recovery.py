"""Recovery: the remaining ranks arrange themselves anew, and go on with the run.

A rank meets the others in a new Comm, where all find the same plan (`rank_status.py`): to go on
from the newest version of the model that they have whole. It keeps its part of that version, drops
its session, and the ranks that work make a new one.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from nnmpi import addons
from nnmpi.comm import Comm, OtherRankError, RankLost
from nnmpi.data import Loader
from nnmpi.io.checkpoints.read import newest_path
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event
from nnmpi.nn.place import StateArray
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.fitted_layout import FittedLayout
from nnmpi.parallel.backup import Version
from nnmpi.parallel.model.state import whole_state
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.callbacks import load_states, states_of
from nnmpi.run.recovery.rank_status import Decision, RankStatus, RecoveryPlan, RunStage, agreed
from nnmpi.run.recovery.survivors import Survivors
from nnmpi.run.recovery.versions import spare_transfers, versions
from nnmpi.run.resume import fitted
from nnmpi.run.run_state import RunState, VersionFacts
from nnmpi.run.session import Session
from nnmpi.run.training import (
    Training,
    Untraced,
    arrange,
    go_back,
    load_callbacks,
    nearest_layout,
    prepare,
    wait,
)


class NothingLeftError(AgreedError):
    """Ranks are lost, and the others cannot go on: a part of the model is gone, or no layout fits.

    checkpoint   from which a job with other ranks may go on, if there is one
    """

    def __init__(self, why: Exception, directory: str | None) -> None:
        self.checkpoint = newest_path(directory)
        at = self.checkpoint
        rest = f"--resume continues from {shown(at)}" if at else "start again"
        super().__init__(f"a rank was lost, and the others cannot continue: {why}; {rest}")


class Recovery:
    """The recovery of one rank; it does not keep the Trainer, which its methods get as an argument.

    stage       how far the Trainer is
    recoveries  the events of recoveries that are not reported yet
    """

    def __init__(self, comm: Comm) -> None:
        self.survivors = Survivors(comm)
        self.stage, self.recoveries = RunStage.SETTING_UP, list[Event]()
        self._was_spare = self._had_spare = False  # this rank, or any rank, since the last loss
        self._session_id = 0  # of the current session or the next one; equal on all ranks
        self._kept: dict[tuple[int, int, int], Version] = {}  # by key
        self._decision: Decision | None = None  # of the step in which a rank was lost
        self._tensors: tuple[StateArray, ...] = ()  # of the whole model

    def set_up(self, trainer: Training) -> None:
        """Sets up a Trainer on every rank; if a rank is lost meanwhile, the remaining ranks do it
        again."""
        comm = self.survivors.all
        layout = FittedLayout(trainer.requested, comm.size, 0, "")
        with suppress(RankLost):
            # lost while MPI started; one rank alone sends no message that would raise RankLost
            if comm.is_abandoned:
                raise RankLost("a rank was lost before the Trainer was made")
            if trainer.requested.elastic:
                layout = fitted(trainer.requested, comm)
                trainer.fitted = (
                    layout.why if layout.spare or layout.config != trainer.requested else ""
                )
            self._arrange_all(trainer, RecoveryPlan(RunStage.SETTING_UP), layout)
            return
        self._recover(trainer)

    def run(self, trainer: Training, f: Callable[[], Event]) -> Event:
        """Returns what f returns on the ranks that work; after a loss these call f again, which
        goes on from where the run is."""
        while True:
            if self.survivors.work is None:  # a spare rank may be the last one that knows of it
                self.stage = RunStage.RUNNING
            with suppress(RankLost):
                return self.survivors.end(f)
            self._recover(trainer)  # outside the block: the traceback keeps the old session alive

    def keep_snapshot(self, run: RunState, session: Session, snapshot: Snapshot) -> None:
        """Keeps a snapshot and what this rank keeps for others, because the session is about to
        end, and the next one is made from the snapshot."""
        if not session.is_closed:
            self._tensors = whole_state(session.model)
            if session.backups is not None:
                self._keep(session.backups.held())
        version = snapshot.state.step
        counters = run.counters_of(snapshot)
        counters = counters._replace(first=version, restored=(*counters.restored, version))
        facts = VersionFacts(snapshot._replace(arrays=()), counters)
        kept = Version(version, snapshot.arrays, facts, session=self._session_id + 1)
        self._kept[kept.key] = kept

    def _keep(self, kept: Iterable[Version]) -> None:
        """Keeps versions of the current session."""
        for version in kept:
            version = version._replace(session=self._session_id)
            known = self._kept.setdefault(version.key, version)
            if known is not version:  # a backup of the same version also has parts of other ranks
                more = {x.range: x for x in (*version.arrays, *known.arrays)}
                self._kept[version.key] = known._replace(arrays=[*more.values()])

    def arrange(self, trainer: Training, config: Config, snapshot: Snapshot) -> None:
        """Opens the next session, on a snapshot."""
        self._session_id += 1
        arrange(trainer, config, trainer.comm, snapshot)

    def arranged(self, session: Session) -> None:
        """Drops the kept snapshots, once all ranks have the session that was made from them, and
        its first backup."""
        session.back_up()
        if session.comm.fault_tolerant:
            session.comm.barrier()
        self._kept.clear()

    def _recover(self, trainer: Training) -> None:
        """Arranges the remaining ranks, and returns when all of them have a new session, or
        wait."""
        began = trainer.comm.system.clock()
        while True:
            self.survivors.shrink()
            try:
                with suppress(RankLost):
                    self._go_on(trainer, began)
                    return
            except (ValueError, OtherRankError, MemoryError) as error:  # on all ranks
                if self.stage == RunStage.SETTING_UP:
                    raise
                raise NothingLeftError(error, trainer.requested.checkpoint_dir) from error

    def _go_on(self, trainer: Training, began: float) -> None:
        """Agrees with all remaining ranks on a plan, and arranges them."""
        if self.stage != RunStage.SETTING_UP:
            trainer.checkpoints.abandon()
        statuses = gather_objects(self.survivors.all, self._status(trainer))
        plan = agreed(statuses)
        self._decision = plan.decision
        if not trainer.session.is_closed:
            self._leave(trainer.session, plan)
        wait(trainer, self.survivors.all)
        layout = self._nearest_layout(trainer)
        self._arrange_all(trainer, plan, layout, statuses)
        run, step = trainer.run, trainer.run.state.step
        # not the steps of ranks that have not completed a restore: it has undone them
        known = (status.counters for status in statuses if status.counters)
        alike = (c for c in known if (c.runs, c.restored) == (run.runs, run.restored))
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
        if self.survivors.work is not None:  # spare ranks report nothing
            self.recoveries.append(event)

    def _leave(self, session: Session, plan: RecoveryPlan) -> None:
        """Keeps this rank's versions of the model, the last step included if the plan makes it, and
        drops the session."""
        source, last = plan.source, session.strategy.last
        if last is not None:
            if source and plan.makes_step and plan.decision and source.version == last.may_make:
                last.make(plan.decision[1])
            last.restore()
        self._keep(versions(session, copies=True))
        session.leave()

    def _arrange_all(
        self,
        trainer: Training,
        plan: RecoveryPlan,
        layout: FittedLayout,
        statuses: Sequence[RankStatus] = (),
    ) -> None:
        """Lets as many ranks work as the layout has places for; the others wait."""
        survivors = self.survivors
        survivors.divide(layout.ranks)
        if plan.stage == RunStage.SETTING_UP:
            prepare(trainer, layout.config, survivors.all, layout.ranks)
        if survivors.work is None:
            wait(trainer, survivors.all)
        snapshot = self._snapshot(plan, statuses, layout.ranks)
        self._take(trainer, plan)
        self._session_id = max((1 + status.session for status in statuses), default=0)
        survivors.arrange(lambda work: self._open(trainer, plan, layout.config, work, snapshot))
        if snapshot is None and not plan.missing:
            load_callbacks(trainer, survivors.all, survivors.spare)
        self._kept.clear()
        self._decision = None
        self._was_spare, self._had_spare = survivors.work is None, survivors.spare > 0
        self.stage = max(plan.stage, RunStage.READY)

    def _open(
        self,
        trainer: Training,
        plan: RecoveryPlan,
        config: Config,
        work: Comm,
        snapshot: Snapshot | None,
    ) -> None:
        """Opens a session on the ranks that work."""
        traced = addons.chosen("tracers", config)
        trainer.tracer = traced(config, work) if traced else Untraced()
        if plan.missing:
            go_back(trainer, config, work, plan.missing, were_spare=plan.counters is None)
            return
        arrange(trainer, config, work, snapshot)
        if snapshot is None and self._session_id:  # after a loss
            self._check_initial(trainer.session)
        if trainer.run.state.step:  # before a first step the run can begin again
            trainer.session.back_up()  # now: what ranks have kept is dropped next
            trainer.session.keep_epoch_start()

    def _nearest_layout(self, trainer: Training) -> FittedLayout:
        """The layout of the remaining ranks, as found by the first rank that knows the model."""
        comm = self.survivors.all
        nearest = all_or_none(comm, lambda: nearest_layout(trainer, comm.size))
        known = filter(None, gather_objects(comm, nearest))
        return next(known, None) or fitted(trainer.requested, comm)

    def _take(self, trainer: Training, plan: RecoveryPlan) -> None:
        """Sets the run of this rank to where the plan goes on."""
        run, source, decision = trainer.run, plan.source, plan.decision
        if plan.counters is None:
            return
        run.adopt(plan.counters)
        if source and decision and source.version > run.state.step:
            run.last = _result(trainer.setup.train, run.state, decision)
            run.count_step(run.last)
        trainer.checkpoints.newest = plan.checkpoint
        run.reported.adopt(plan.reported if self._was_spare else None, plan.repeated_calls)
        if self._was_spare and plan.callbacks:
            load_states(trainer.callbacks, plan.callbacks)

    def _snapshot(
        self, plan: RecoveryPlan, statuses: Sequence[RankStatus], working: int
    ) -> Snapshot | None:
        """The snapshot that the next session is made from: this rank's part of the source, with
        parts that only spare ranks have; None if the plan has no source."""
        if (source := plan.source) is None:
            return None
        kept = self._kept.get(source.key)
        owned = tuple(kept.arrays) if kept else ()
        decision = plan.decision if plan.makes_step else None
        holds = [status.can_hold(decision) for status in statuses]
        transfers = spare_transfers(holds, source, working)
        head: Snapshot = source.about.head
        return head._replace(arrays=(*owned, *self.survivors.exchange(transfers, owned)))

    def _check_initial(self, session: Session) -> None:
        """Raises ValueError if a run that begins again had other initial values the first time."""
        initial = {x.range: x for x in session.state()}

        def check() -> None:
            for kept in (x for v in self._kept.values() if not v.version for x in v.arrays):
                here = initial.get(kept.range)
                if here is not None and not np.array_equal(here.elements(), kept.elements()):
                    raise ValueError(
                        f"{kept.name} was changed before the first step, and a lost rank had a "
                        "part of the model, so the run cannot begin again"
                    )

        all_or_none(session.comm, check)

    # ---- what the others hear

    def _status(self, trainer: Training) -> RankStatus:
        if self.stage == RunStage.SETTING_UP:
            return RankStatus(self.stage, self._session_id)
        run, session, holds = trainer.run, trainer.session, list[Version]()
        last = None if session.is_closed else session.strategy.last
        if not session.is_closed:
            with suppress(RankLost):  # resharding may communicate with the lost rank
                session.reshard()
            self._tensors = whole_state(session.model)
            holds += [v._replace(session=self._session_id) for v in versions(session)]
        holds += self._kept.values()
        return RankStatus(
            self.stage,
            self._session_id,
            run.counters,
            run.reported,
            tuple(version.on_paper() for version in holds),
            self._tensors,
            last.may_make if last else None,
            (last.decision if last else None) or self._decision,
            trainer.checkpoints.newest,
            tuple(states_of(trainer.callbacks)) if self._had_spare else (),
        )


def _result(loader: Loader, state: StepState, decision: Decision) -> StepResult:
    """The result of the step, or the round of steps, that follows `state`, from the decision of all
    ranks."""
    end, sums = decision
    samples, divisor = 0, 0.0
    for rows in islice(loader.batches(state.epoch), state.batch, state.batch + end - state.step):
        samples += len(rows)
        divisor += loader.divisor(loader.split.y.take(rows, axis=0))
        state = state.next(len(loader))
    return StepResult(state, samples, divisor, *Outcome.of(sums))
