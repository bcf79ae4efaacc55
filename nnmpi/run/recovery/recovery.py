"""Recovery: the ranks that are left arrange themselves anew, and go on with the run.

A rank keeps what it has in a snapshot, forgets its session, and meets the others in a new Comm;
there all find what comes next (`standing.py`), and the ranks that work make a new session.
"""

import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.comm import Comm, OtherRankError, RankLost
from nnmpi.config import Config
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.fewer import Fewer, arrange_fewer
from nnmpi.parallel.backup import HeldVersion
from nnmpi.parallel.model.moves import MovedTensor
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.torn import SeenStep
from nnmpi.parallel.strategy import AgreedError
from nnmpi.quoting import shown
from nnmpi.run.recovery.holdings import Holding, OwnedRange, handed_over, tensors_of
from nnmpi.run.recovery.ranks_left import RanksLeft
from nnmpi.run.recovery.standing import Course, RunStage, Standing, agreed
from nnmpi.run.report import Event
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session, VersionFacts
from nnmpi.run.snapshot import Snapshot


class NothingLeftError(AgreedError):
    """Ranks are lost, and the others cannot go on: what nobody else has is gone, or no layout fits.

    checkpoint   from which a job with other ranks may go on, if there is one
    """

    checkpoint: str | None = None


class Hooks(NamedTuple):
    """What a Trainer does for its recovery.

    config    how ranks were to be arranged, before any was lost
    fitted    the nearest layout for so many ranks; None where this rank does not know the model
    set_up    loads data on these ranks, of which so many work
    arrange   opens a session
    resume    opens one on the newest checkpoint, since nobody has something
    wait      this rank is spare, until a session is opened
    newest    the newest checkpoint, if there is one
    run       the counters; None before it is set up
    session   that of this rank; None where there is none
    """

    config: Callable[[], Config]
    fitted: Callable[[int], Fewer | None]
    set_up: Callable[[Config, Comm, int], None]
    arrange: Callable[[Config, Comm, Snapshot | None], None]
    resume: Callable[[Config, Comm, str], None]
    wait: Callable[[Comm], None]
    newest: Callable[[], str | None]
    run: Callable[[], RunState | None]
    session: Callable[[], Session | None]


class Recovery:
    """That of one rank.

    stage   how far its Trainer is
    news    the events of losses, until they are told
    """

    def __init__(self, comm: Comm, hooks: Hooks) -> None:
        self.survivors, self._hooks = RanksLeft(comm), hooks
        self.stage, self.news = RunStage.SETTING_UP, list[Event]()
        self._was_spare = False  # since the last loss
        self._number = 0  # of the session, or of the one that is to come: the same on all ranks
        self._kept: dict[tuple[int, int], HeldVersion] = {}  # by version and session
        self._seen: SeenStep | None = None  # what ranks know of the step in which one was lost
        self._finished: StepResult | None = None  # that step, if it was finished here
        self._tensors: tuple[MovedTensor, ...] = ()  # of the whole model

    def set_up(self) -> None:
        """Every rank sets up; where one is lost, those that are left do it again."""
        comm = self.survivors.all
        try:
            self._hooks.set_up(self._hooks.config(), comm, comm.size)
            self.arrange(self._hooks.config(), comm, None)
        except RankLost:
            if not comm.fault_tolerant:
                raise
        else:
            self.stage = RunStage.READY
            return
        self._recover()

    def run(self, f: Callable[[], Event]) -> Event:
        """What f returns on the ranks that work; after a loss they call it again, and it goes on
        from where the run is."""
        try:
            while True:
                try:
                    return self.survivors.end(f)
                except RankLost:
                    if not self.survivors.all.fault_tolerant:
                        raise
                self._recover()  # after the handler, whose traceback has the old session
        finally:
            self.stage = RunStage.READY

    def keep(self, snapshot: Snapshot) -> None:
        """The session that this is of is about to end, and another one is made of it."""
        run = self._hooks.run()
        assert run is not None
        facts = VersionFacts(snapshot._replace(owned=()), run.counters_of(snapshot))
        version = snapshot.state.step
        self._kept[version, self._number] = HeldVersion(version, snapshot.owned, facts)
        self._number += 1

    def arrange(self, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
        """A session; when all ranks have it, none needs what it was made of."""
        self._hooks.arrange(config, comm, snapshot)
        if comm.fault_tolerant:
            comm.barrier()
        self._kept.clear()

    def _recover(self) -> None:
        """Returns when the ranks that are left are arranged again."""
        began = time.perf_counter()
        while True:
            self.survivors.shrink()
            try:
                self._leave()
                self._go_on(began)
            except RankLost:
                continue
            except (ValueError, OtherRankError, MemoryError) as error:  # on all ranks
                if self.stage == RunStage.SETTING_UP:
                    raise
                raise self._stuck(error) from error
            return

    def _stuck(self, error: Exception) -> NothingLeftError:
        """What to raise where the ranks that are left cannot be arranged."""
        checkpoint = self._hooks.newest()
        rest = f"--resume goes on from {shown(checkpoint)}" if checkpoint else "start again"
        found = NothingLeftError(f"a rank was lost, and the others cannot go on: {error}; {rest}")
        found.checkpoint = checkpoint
        return found

    def _leave(self) -> None:
        """The step in which a rank was lost is finished, or undone; what the session has is kept,
        and the session dropped."""
        everyone, session = self.survivors.all, self._hooks.session()
        torn = session.strategy.torn if session else None
        found = gather_objects(everyone, torn.seen() if torn else self._seen)
        known = [one for one in found if one is not None]
        self._seen = SeenStep.joined(known) if known else None
        if session is not None and self._seen is not None:
            self._finished = session.finish(self._seen, everyone.members) or self._finished
        everyone.barrier()  # ranks of a node have finished parts of each other
        if session is not None:
            for version, held in session.left(self._finished, everyone.members).items():
                self._kept[version, self._number] = held
            self._tensors = tensors_of(session.model)
            session.leave()
        self._hooks.wait(everyone)
        del session, torn
        gc.collect()  # a parameter and its store know each other

    def _go_on(self, began: float) -> None:
        """What comes next, for all ranks that are left."""
        survivors = self.survivors
        standings = gather_objects(survivors.all, self._standing())
        course, fewer = agreed(standings), self._fewer()
        survivors.divide(fewer.ranks)
        if course.stage == RunStage.SETTING_UP:
            self._hooks.set_up(fewer.config, survivors.all, fewer.ranks)
        snapshot = self._snapshot(course.source, standings, fewer.ranks)
        self._take(course)
        # where it fails, spare ranks hear of it too
        all_or_none(survivors.all, lambda: self._open(course, fewer.config, snapshot))
        self._number = 1 + max(one.number for one in standings)
        self._kept.clear()
        self._seen = self._finished = None
        self._was_spare = survivors.work is None
        self.stage = max(course.stage, RunStage.READY)
        made = max(one.step for one in standings)
        self.news.append(self._event(made, fewer, time.perf_counter() - began))

    def _open(self, course: Course, config: Config, snapshot: Snapshot | None) -> None:
        """A session, on the ranks that work."""
        if self.survivors.work is None:
            self._hooks.wait(self.survivors.all)
        elif course.lacks:
            self._hooks.resume(config, self.survivors.work, course.lacks)
        else:
            self._hooks.arrange(config, self.survivors.work, snapshot)
            self._check_initial(course)

    def _fewer(self) -> Fewer:
        """The layout of the ranks that are left, from the first one that knows the model."""
        comm = self.survivors.all
        own = all_or_none(comm, lambda: self._hooks.fitted(comm.size))
        known = filter(None, gather_objects(comm, own))
        found = next(known, None)
        return found or arrange_fewer(self._hooks.config(), comm.size, plan.check)

    def _take(self, course: Course) -> None:
        """The counters of the run are those of all ranks."""
        run = self._hooks.run()
        if run is not None and course.counters is not None:
            run.take(course.counters, course.unfinished)
            run.told.take(course.told if self._was_spare else {}, course.again)

    def _snapshot(
        self, source: Holding | None, standings: Sequence[Standing], working: int
    ) -> Snapshot | None:
        """What the next session is made of: what this rank has, if it is of the right step, and
        what spare ranks have that no other one has."""
        if source is None:
            return None
        held = self._kept.get(source.key)
        owned = tuple(held.ranges) if held is not None else ()
        gifts = handed_over([one.holds for one in standings], source, working)
        return source.facts.head._replace(owned=(*owned, *self.survivors.give(gifts, owned)))

    def _check_initial(self, course: Course) -> None:
        """Raises NothingLeftError if a run that begins again had other values at its start."""
        session, comm = self._hooks.session(), self.survivors.work
        if course.source is not None or session is None or comm is None:
            return
        now = {OwnedRange.of(one): one.values for one in session.snapshot().owned}

        def check() -> None:
            for held in self._kept.values():
                for one in held.ranges:
                    own = slice(0, one.hi - one.lo)
                    values = now.get(OwnedRange.of(one))
                    if values is not None and not np.array_equal(values[own], one.values[own]):
                        raise NothingLeftError(
                            f"{one.place.path} was changed before the first step, and a rank was "
                            "lost that had a part of the model: start again"
                        )

        all_or_none(comm, check)

    # ---- what the others hear

    def _standing(self) -> Standing:
        run = self._hooks.run()
        if run is None:
            return Standing(self.stage, self._number)
        return Standing(
            self.stage,
            self._number,
            run.told.last,
            run.told.calling,
            tuple(self._holding(*key) for key in self._kept),
            run.counters,
            run.result,
            run.follows,
            self._finished,
        )

    def _event(self, made: int, fewer: Fewer, seconds: float) -> Event:
        run = self._hooks.run()
        step = run.state.step if run else 0
        return {
            "event": "recovered",
            "step": step,
            "lost": self.survivors.lost,
            "ranks": fewer.ranks,
            "spare": fewer.spare,
            "layout": fewer.why,
            "seconds": round(seconds, 4),
            "steps_again": max(made - step, 0),
        }

    def _holding(self, version: int, session: int) -> Holding:
        held = self._kept[version, session]
        ranges = tuple(OwnedRange.of(one) for one in held.ranges)
        return Holding(version, session, self._tensors, ranges, held.about)
