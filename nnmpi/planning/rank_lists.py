"""The lists of ranks by which time and memory are predicted: of whole stages, and of a batch."""

from collections.abc import Sequence

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.step import passes_of, step_list
from nnmpi.schedules.lists.of_schedule import of_passes
from nnmpi.schedules.lists.step_list import StepList


@cached
def whole_stages(a: Arrangement, micro: int) -> Sequence[StepList]:
    """Returns, for each rank along pp, its list without sums of gradients, in which each whole
    stage is a unit."""
    again = a.config.recompute == "stage"
    return of_passes(passes_of(a, micro), a.division.place, micro, again)


def list_of_batch(a: Arrangement, rank: int) -> StepList:
    """Returns the operations that a rank carries out in a step over a whole batch or, if steps of a
    pipeline overlap, in as many steps as there are stages."""
    steps = 1 if a.steps_together else len(a.stages)
    return step_list(a, rank, steps * len(micro_batches(a, rank, a.config.batch_size)))
