"""The lists of the ranks of a pipeline with whole stages as units, by which time and memory are
predicted."""

from collections.abc import Sequence

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.step_list.step import passes_of
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import StepList, without_sums


@cached
def whole_stages(a: Arrangement, micro: int) -> Sequence[StepList]:
    """Returns, for each rank along pp, its list without sums of gradients, in which each whole
    stage is a unit."""
    chains = [Chain.of_stages(a.division.place, place) for place in range(a.mesh.axes["pp"])]
    again, passes = a.config.recompute == "stage", passes_of(a, micro)
    return [without_sums(*each, micro, again) for each in zip(passes, chains, strict=True)]
