"""What a rank takes along from its session when another rank is lost."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice

from nnmpi.comm import RankLost
from nnmpi.parallel.backup import HeldVersion
from nnmpi.parallel.model.snapshot import SavedRange, saved
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.torn import SeenStep
from nnmpi.run.run_state import VersionFacts
from nnmpi.run.session import Session


def finished(session: Session, seen: SeenStep, left: Collection[int]) -> StepResult | None:
    """The step in which a rank was lost, if it could be finished here and is not noted yet; if it
    could not, it is undone. `left` are the ranks of the job that are left."""
    torn, state, loader = session.strategy.torn, session.run.state, session.setup.train
    assert torn is not None
    outcome = torn.finish(seen, left)
    torn.undo()
    if outcome is None or state.step > seen.step:
        return None
    rows = next(islice(loader.batches(state.epoch), state.batch, None))
    divisor = loader.divisor(loader.split.y.take(rows, axis=0))
    return StepResult(state.next(len(loader)), len(rows), divisor, *outcome)


def held(session: Session, step: StepResult | None, left: Collection[int]) -> Iterator[HeldVersion]:
    """What this rank has of earlier steps; and after the last one, with what lost ranks of its node
    had. `step` is that one, if it was finished in this session."""
    with suppress(RankLost):  # where parameters are gathered again for steps
        session.wake()
    yield from session.backups.held()
    if (start := session.epoch_start) is not None:
        yield start
        if start.version == session.run.state.step:  # what is there now may be of later steps
            session.run.take(start.about.counters, None)
            return
    own, run, torn = session.snapshot(), session.run, session.strategy.torn
    ranges = [*own.owned, *of_lost(session, left)]
    head = own._replace(owned=())
    if step and own.loss_scale and torn and not torn.settled:
        head = head._replace(loss_scale=own.loss_scale.after(step.updated))
    version = (step or run.finished or run).state.step
    yield HeldVersion(version, ranges, VersionFacts(head, run.counters))


def of_lost(session: Session, left: Collection[int]) -> Iterator[SavedRange]:
    """What lost ranks of its node had, for which this rank stands."""
    if (torn := session.strategy.torn) is not None:
        for rank in torn.lost(left):
            with torn.in_place_of(rank):
                yield from saved(session.part, session.optimizer)
