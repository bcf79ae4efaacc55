"""The lists of ranks by which time and memory are predicted: of whole stages, and of a batch."""

from collections.abc import Sequence
from functools import lru_cache

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.step import passes_of, step_list
from nnmpi.schedules.find import find
from nnmpi.schedules.lists.of_schedule import of_passes
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.pipeline import Schedule


def whole_stages(a: Arrangement, micro: int) -> Sequence[StepList]:
    """Returns lists of ranks along pp, without sums of gradients; a whole stage is a unit."""
    place, again = a.division.place, a.config.recompute == "stage"
    if a.strategy.passes:
        return of_passes(passes_of(a, micro), place, micro, again)
    return _of_pipeline(find(a.config.schedule), a.mesh.axes["pp"], micro, place, again)


@lru_cache(maxsize=4)
def _of_pipeline(
    schedule: Schedule, p: int, m: int, place: tuple[int, ...], again: bool
) -> Sequence[StepList]:
    """Returns the lists of a pipeline of p ranks for m micro-batches; `place` has the rank of each
    stage. They are long, and many layouts of a search have the same, so the last few are kept."""
    return of_passes(schedule.compute(p, m, len(place) // p), place, m, again)


def list_of_batch(a: Arrangement, rank: int) -> StepList:
    """Returns the operations of a rank in a step over a batch or, if steps overlap, in as many
    steps as there are stages."""
    steps = 1 if a.steps_together else len(a.stages)
    return step_list(a, rank, steps * len(micro_batches(a, rank, a.config.batch_size)))
