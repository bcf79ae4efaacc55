"""Statistics of a batch whose images are cut by rows."""

from collections.abc import Callable

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.data.batch_stats import Synced


class OverRows:
    """`BatchStats` over the rows of all ranks, then over what `samples` joins: other samples."""

    def __init__(self, comm: Comm, samples: BatchStats) -> None:
        self._rows, self._samples = Synced(comm), samples

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return self._samples.moments(self._rows.moments(local, _no_track), track)

    def sum(self, sums: Array) -> Array:
        return self._samples.sum(self._rows.sum(sums))


def _no_track(whole: Moments) -> None:
    """The running statistics follow the whole batch, not one rank's samples."""
