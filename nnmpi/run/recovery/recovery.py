"""Recovery: the ranks that are left arrange themselves anew, and go on with the run.

A rank meets the others in a new Comm, where all find what comes next (`standing.py`): from the
newest version of which they have all. It keeps what it has of that, forgets its session, and the
ranks that work make a new one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from nnmpi.comm import Comm, OtherRankError, RankLost
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.fewer import Fewer
from nnmpi.parallel.backup import HeldVersion
from nnmpi.parallel.model.moves import MovedTensor
from nnmpi.parallel.refusals import why_not
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.update import Outcome
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.callbacks import load_states, states_of
from nnmpi.run.checkpoints.read import newest_path
from nnmpi.run.recovery.holdings import Holding, handed_over, tensors_of, versions
from nnmpi.run.recovery.ranks_left import RanksLeft
from nnmpi.run.recovery.standing import Course, Decision, RunStage, Standing, agreed
from nnmpi.run.report import Event
from nnmpi.run.resume import fitted
from nnmpi.run.run_state import Counters, Followed, VersionFacts
from nnmpi.run.session import Session
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.training import Training


class NothingLeftError(AgreedError):
    """Ranks are lost, and the others cannot go on: what nobody else has is gone, or no layout fits.

    checkpoint   from which a job with other ranks may go on, if there is one
    """

    checkpoint: str | None = None


class Recovery:
    """The recovery of one rank.

    stage   how far its Trainer is
    news    the events of losses, until they are told
    """

    def __init__(self, comm: Comm, training: Training) -> None:
        self.survivors, self._training = RanksLeft(comm), training
        self.stage, self.news = RunStage.SETTING_UP, list[Event]()
        self._was_spare = self._had_spare = False  # this rank, and any, since the last loss
        self._number = 0  # of the session, or of the one that is to come: the same on all ranks
        self._kept: dict[tuple[int, int], HeldVersion] = {}  # by version and session
        self._decision: Decision | None = None  # of the step in which a rank was lost
        self._tensors: tuple[MovedTensor, ...] = ()  # of the whole model

    def set_up(self) -> None:
        """Every rank sets up; where one is lost, those that are left do it again."""
        training, comm = self._training, self.survivors.all
        fewer = Fewer(training.asked, comm.size, 0, "")
        with suppress(RankLost):
            if comm.is_abandoned:  # where MPI started; one rank alone sends nothing that would tell
                raise RankLost("a rank was lost before the Trainer was made")
            if training.asked.elastic:
                fewer = fitted(training.asked, comm)
                training.why = fewer.why if fewer.spare or fewer.config != training.asked else ""
            self._arrange_all(Course(RunStage.SETTING_UP), fewer)
            return
        self._recover()

    def run(self, f: Callable[[], Event]) -> Event:
        """Return what f returns on the ranks that work; after a loss they call it again, and it
        goes on from where the run is."""
        while True:
            if self.survivors.work is None:  # it may be the only one that knows of the run
                self.stage = RunStage.RUNNING
            with suppress(RankLost):
                return self.survivors.end(f)
            self._recover()  # after the block, as the traceback has the old session

    def keep(self, snapshot: Snapshot) -> None:
        """The session that this is of is about to end, and another one is made of it."""
        run = self._training.run
        followed = run.pending if snapshot.state == run.state else None
        head = snapshot._replace(owned=())
        facts = VersionFacts(head, followed or Followed(run.counters_of(snapshot)))
        version = snapshot.state.step
        self._kept[version, self._number] = HeldVersion(version, snapshot.owned, facts)
        self._number += 1

    def arrange(self, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
        """A session; when all ranks have it, none needs what it was made of."""
        self._training.arrange(config, comm, snapshot)
        if comm.fault_tolerant:
            comm.barrier()
        self._kept.clear()

    def _recover(self) -> None:
        """Returns when the ranks that are left are arranged again."""
        began = time.perf_counter()
        while True:
            self.survivors.shrink()
            try:
                with suppress(RankLost):
                    self._go_on(began)
                    return
            except (ValueError, OtherRankError, MemoryError) as error:  # on all ranks
                if self.stage == RunStage.SETTING_UP:
                    raise
                raise self._stuck(error) from error

    def _stuck(self, error: Exception) -> NothingLeftError:
        """The error to raise where the ranks that are left cannot be arranged."""
        checkpoint = newest_path(self._training.asked.checkpoint_dir)
        rest = f"--resume goes on from {shown(checkpoint)}" if checkpoint else "start again"
        found = NothingLeftError(f"a rank was lost, and the others cannot go on: {error}; {rest}")
        found.checkpoint = checkpoint
        return found

    def _go_on(self, began: float) -> None:
        """Agrees with all ranks that are left on the course, and arranges them."""
        if self.stage != RunStage.SETTING_UP:
            self._training.saves.abandon()
        standings = gather_objects(self.survivors.all, self._standing())
        course = agreed(standings)
        self._decision = course.decision
        if not self._training.session.is_closed:
            self._leave(self._training.session, course)
        self._training.wait(self.survivors.all)
        fewer = self._fewer()
        self._arrange_all(course, fewer, standings)
        made = max(one.step for one in standings)
        if self.survivors.work is not None:  # spare ranks tell nothing
            self.news.append(self._event(made, fewer, time.perf_counter() - began))

    def _leave(self, session: Session, course: Course) -> None:
        """Keeps what a session has, with the last step if that belongs to the version from which
        all go on, and forgets the session."""
        source, last = course.source, session.strategy.last
        if last is not None:
            if source and course.makes and course.decision and source.version == last.may_make:
                last.make(course.decision[1])
            last.put_back()
        for one in versions(session, copies=True):
            key = one.version, self._number
            before = self._kept.setdefault(key, one)
            if before is not one:  # a backup, which has parts of others too
                more = {have.range: have for have in (*one.ranges, *before.ranges)}
                self._kept[key] = before._replace(ranges=[*more.values()])
        session.leave()

    def _arrange_all(
        self, course: Course, fewer: Fewer, standings: Sequence[Standing] = ()
    ) -> None:
        """As many ranks as have a place in the layout work, and the others wait."""
        survivors, training = self.survivors, self._training
        survivors.divide(fewer.ranks)
        if course.stage == RunStage.SETTING_UP:
            training.set_up(fewer.config, survivors.all, fewer.ranks)
        if survivors.work is None:
            training.wait(survivors.all)
        snapshot = self._snapshot(course, standings, fewer.ranks)
        self._take(course)
        self._number = max((1 + one.number for one in standings), default=0)
        survivors.arrange(lambda work: self._open(course, fewer.config, work, snapshot))
        if snapshot is None and not course.lacks:
            training.load_callbacks(survivors.all, survivors.spare)
        self._kept.clear()
        self._decision = None
        self._was_spare, self._had_spare = survivors.work is None, survivors.spare > 0
        self.stage = max(course.stage, RunStage.READY)

    def _open(self, course: Course, config: Config, work: Comm, snapshot: Snapshot | None) -> None:
        """A session of the ranks that work."""
        if course.lacks:
            self._go_back(config, work, course)
            return
        self._training.arrange(config, work, snapshot)
        if snapshot is None and self._number:  # after a loss
            self._check_initial(work)

    def _fewer(self) -> Fewer:
        """The layout of the ranks that are left, from the first one that knows the model."""
        comm = self.survivors.all
        own = all_or_none(comm, lambda: self._training.fitted(comm.size))
        known = filter(None, gather_objects(comm, own))
        return next(known, None) or fitted(self._training.asked, comm)

    def _take(self, course: Course) -> None:
        """The run is as far as that of all ranks."""
        run, source, followed = self._training.run, course.source, course.followed
        if followed is not None:
            if source and course.decision and source.version > followed.step:
                result = self._result(followed.counters, course.decision[1])
                followed = followed._replace(result=result)
            run.take(followed)
            run.told.take(course.told if self._was_spare else None, course.again)
            if self._was_spare and course.callbacks:
                load_states(self._training.callbacks, course.callbacks)

    def _result(self, counters: Counters, decision: Sequence[float]) -> StepResult:
        """The step that is made after these counters."""
        loader, state = self._training.setup.train, counters.state
        rows = next(islice(loader.batches(state.epoch), state.batch, None))
        divisor = loader.divisor(loader.split.y.take(rows, axis=0))
        return StepResult(state.next(len(loader)), len(rows), divisor, *Outcome.of(decision))

    def _snapshot(
        self, course: Course, standings: Sequence[Standing], working: int
    ) -> Snapshot | None:
        """The snapshot that the next session is made of: what this rank has, if it is of the right
        step, and what spare ranks have that no other one has."""
        if (source := course.source) is None:
            return None
        own = self._kept.get(source.key)
        owned = tuple(own.ranges) if own else ()
        decision = course.decision if course.makes else None
        holds = [one.can_hold(decision) for one in standings]
        gifts = handed_over(holds, source, working)
        return source.facts.head._replace(owned=(*owned, *self.survivors.give(gifts, owned)))

    def _go_back(self, config: Config, comm: Comm, course: Course) -> None:
        """Goes back to the newest checkpoint; raises ValueError where there is none."""
        if not self._training.go_back(config, comm, were_spare=course.followed is None):
            directory = config.checkpoint_dir
            where = f"no checkpoint in {shown(directory)} has it" if directory else "no checkpoint"
            asked = self._training.asked
            no_backup = asked.backup is not None or why_not("backup", asked, comm.size)
            remedy = "" if no_backup else "--backup or "
            shorter = "a shorter " if asked.save_every else ""
            raise ValueError(
                f"nothing is left to go on from: {where} ({course.lacks}); "
                f"{remedy}{shorter}--save-every keeps it"
            )

    def _check_initial(self, comm: Comm) -> None:
        """Raises ValueError if a run that begins again had other values at its start."""
        now = {one.range: one.values for one in self._training.session.snapshot().owned}

        def check() -> None:
            for kept in (one for one in self._kept.values() if not one.version):
                for one in kept.ranges:
                    own = slice(0, one.hi - one.lo)
                    values = now.get(one.range)
                    if values is not None and not np.array_equal(values[own], one.values[own]):
                        raise ValueError(
                            f"{one.path} was changed before the first step, and a rank was "
                            "lost that had a part of the model"
                        )

        all_or_none(comm, check)

    # ---- what the others hear

    def _standing(self) -> Standing:
        if self.stage == RunStage.SETTING_UP:
            return Standing(self.stage, self._number)
        run, session, holds = self._training.run, self._training.session, list[Holding]()
        last = None if session.is_closed else session.strategy.last
        if not session.is_closed:
            with suppress(RankLost):  # where parameters are gathered again for steps
                session.wake()
            self._tensors = tensors_of(session.model)
            holds += [self._holding(one, self._number) for one in versions(session)]
        holds += [self._holding(one, number) for (_, number), one in self._kept.items()]
        return Standing(
            self.stage,
            self._number,
            run.followed,
            run.told,
            tuple(holds),
            last.may_make if last else None,
            (last.decision if last else None) or self._decision,
            run.changed,
            tuple(states_of(self._training.callbacks)) if self._had_spare else (),
        )

    def _event(self, made: int, fewer: Fewer, seconds: float) -> Event:
        step = self._training.run.followed.step
        return {
            "event": "recovered",
            "step": step,
            "lost": [*self.survivors.all.lost],
            "ranks": fewer.ranks,
            "spare": fewer.spare,
            "layout": fewer.why,
            "seconds": round(seconds, 4),
            "steps_again": max(made - step, 0),
        }

    def _holding(self, own: HeldVersion, session: int) -> Holding:
        ranges = tuple(one.range for one in own.ranges)
        return Holding(own.version, session, self._tensors, ranges, own.about)
