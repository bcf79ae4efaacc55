"""Recovery: the ranks that are left arrange themselves anew, and go on with the run.

A rank keeps what it has in a snapshot, forgets its session, and meets the others in a new Comm;
there all find what comes next (`standing.py`), and the ranks that work make a new session.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

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
from nnmpi.parallel.step.torn import SeenStep
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.callbacks import load_states, states_of
from nnmpi.run.checkpoints.read import newest_path
from nnmpi.run.recovery.holdings import Holding, handed_over, tensors_of
from nnmpi.run.recovery.leaving import finished, held, of_lost
from nnmpi.run.recovery.ranks_left import RanksLeft
from nnmpi.run.recovery.standing import Course, RunStage, Standing, agreed
from nnmpi.run.report import Event
from nnmpi.run.resume import fitted
from nnmpi.run.run_state import VersionFacts
from nnmpi.run.session import Session
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.training import Training


class NothingLeftError(AgreedError):
    """Ranks are lost, and the others cannot go on: what nobody else has is gone, or no layout fits.

    checkpoint   from which a job with other ranks may go on, if there is one
    """

    checkpoint: str | None = None


class Recovery:
    """That of one rank.

    stage   how far its Trainer is
    news    the events of losses, until they are told
    """

    def __init__(self, comm: Comm, training: Training) -> None:
        self.survivors, self._training = RanksLeft(comm), training
        self.stage, self.news = RunStage.SETTING_UP, list[Event]()
        self._was_spare = False  # since the last loss
        self._number = 0  # of the session, or of the one that is to come: the same on all ranks
        self._kept: dict[tuple[int, int], HeldVersion] = {}  # by version and session
        self._seen: SeenStep | None = None  # what ranks know of the step in which one was lost
        self._finished: StepResult | None = None  # that step, if it was finished here
        self._tensors: tuple[MovedTensor, ...] = ()  # of the whole model
        self._torn: dict[tuple[int, int], Session] = {}  # in which ranks were lost, as `_kept`

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
        """What f returns on the ranks that work; after a loss they call it again, and it goes on
        from where the run is."""
        while True:
            if self.survivors.work is None:  # it may be the only one that knows of the run
                self.stage = RunStage.RUNNING
            with suppress(RankLost):
                return self.survivors.end(f)
            self._recover()  # after the block, as the traceback has the old session

    def keep(self, snapshot: Snapshot) -> None:
        """The session that this is of is about to end, and another one is made of it."""
        counters = self._training.run.counters_of(snapshot)
        facts = VersionFacts(snapshot._replace(owned=()), counters)
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
                    self._leave()
                    self._go_on(began)
                    return
            except (ValueError, OtherRankError, MemoryError) as error:  # on all ranks
                if self.stage == RunStage.SETTING_UP:
                    raise
                raise self._stuck(error) from error

    def _stuck(self, error: Exception) -> NothingLeftError:
        """What to raise where the ranks that are left cannot be arranged."""
        checkpoint = newest_path(self._training.asked.checkpoint_dir)
        rest = f"--resume goes on from {shown(checkpoint)}" if checkpoint else "start again"
        found = NothingLeftError(f"a rank was lost, and the others cannot go on: {error}; {rest}")
        found.checkpoint = checkpoint
        return found

    def _leave(self) -> None:
        """The step in which a rank was lost is finished, or undone; what the session has is kept,
        and the session dropped."""
        everyone, session = self.survivors.all, self._training.session
        if self.stage != RunStage.SETTING_UP:
            self._training.saves.abandon()
        is_open = not session.is_closed
        torn = session.strategy.torn if is_open else None
        found = gather_objects(everyone, torn.seen() if torn else self._seen)
        known = [one for one in found if one is not None]
        self._seen = SeenStep.joined(known) if known else None
        step = None
        if is_open and self._seen is not None:
            step = finished(session, self._seen, everyone.members)
        self._finished = step or self._finished
        everyone.barrier()  # ranks of a node have finished parts of each other
        for key, left in self._torn.items():  # memory of a node has what those now lost have kept
            kept = self._kept[key]
            ranges = [*kept.ranges, *of_lost(left, everyone.members)]
            once = {one.range: one for one in ranges}
            self._kept[key] = kept._replace(ranges=[*once.values()])
        if is_open:
            for one in held(session, step, everyone.members):
                key = one.version, self._number
                self._kept[key] = one
            self._torn[key] = session  # the last one is what it has now
            self._tensors = tensors_of(session.model)
            session.leave()
        del session, torn
        self._training.wait(everyone)

    def _go_on(self, began: float) -> None:
        """What comes next, for all ranks that are left."""
        standings = gather_objects(self.survivors.all, self._standing())
        fewer = self._fewer()
        self._arrange_all(agreed(standings), fewer, standings)
        made = max(one.step for one in standings)
        if self.survivors.work is not None:  # spare ranks tell nothing
            self.news.append(self._event(made, fewer, time.perf_counter() - began))

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
        snapshot = self._snapshot(course.source, standings, fewer.ranks)
        self._take(course)
        self._number = max((1 + one.number for one in standings), default=0)
        survivors.arrange(lambda work: self._open(course, fewer.config, work, snapshot))
        if snapshot is None and not course.lacks:
            training.load_callbacks(survivors.all, survivors.spare)
        self._kept.clear()
        self._torn.clear()
        self._seen = None
        self._was_spare = survivors.work is None
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
        """The counters of the run are those of all ranks."""
        run, self._finished = self._training.run, None
        if course.counters is not None:
            run.take(course.counters, course.unfinished)
            run.told.take(course.told if self._was_spare else {}, course.again)
            if self._was_spare and course.callbacks:
                load_states(self._training.callbacks, course.callbacks)

    def _snapshot(
        self, source: Holding | None, standings: Sequence[Standing], working: int
    ) -> Snapshot | None:
        """What the next session is made of: what this rank has, if it is of the right step, and
        what spare ranks have that no other one has."""
        if source is None:
            return None
        own = self._kept.get(source.key)
        owned = tuple(own.ranges) if own else ()
        gifts = handed_over([one.holds for one in standings], source, working)
        return source.facts.head._replace(owned=(*owned, *self.survivors.give(gifts, owned)))

    def _go_back(self, config: Config, comm: Comm, course: Course) -> None:
        """Goes back to the newest checkpoint; raises ValueError where there is none."""
        if not self._training.go_back(config, comm, were_spare=course.counters is None):
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
        run = self._training.run
        return Standing(
            self.stage,
            self._number,
            run.told.last,
            run.told.calling,
            tuple(self._holding(*key) for key in self._kept),
            run.counters,
            (run.result, self._finished),
            run.follows,
            tuple(states_of(self._training.callbacks)) if self.survivors.spare else (),
        )

    def _event(self, made: int, fewer: Fewer, seconds: float) -> Event:
        step = self._training.run.state.step
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

    def _holding(self, version: int, session: int) -> Holding:
        own = self._kept[version, session]
        ranges = tuple(one.range for one in own.ranges)
        return Holding(version, session, self._tensors, ranges, own.about)
