"""StepTraffic: measures the bytes and messages that a rank sends in a step, as the difference of
the counters of its communicators after and before the step."""

from collections.abc import Callable, Generator, Iterable

from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import TRAFFIC_AXES, AxisTraffic, Traffic
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.step.executor import StepResult


class StepTraffic:
    """Counts what a rank sends in the first step with a full batch that follows another step.

    If replicas are averaged once in a round of several steps, the result is the mean over the first
    round that follows another. If the first epoch has no such round, all steps of the second epoch
    are counted.

    Messages belong to the step that starts them: until steps have been counted, each step ends with
    `complete`, which waits for its messages. Messages between two steps, such as those of --verify
    and callbacks, are not counted.
    """

    sent: AxisTraffic | None = None
    _has_begun = False

    def __init__(
        self, layout: Layout, a: Arrangement, complete: Callable[[], None] = lambda: None
    ) -> None:
        self._layout, self._complete = layout, complete
        self._batch = a.config.batch_size
        self._samples = self._batch * a.strategy.result_steps(a.config)  # of a whole round

    def counted(
        self, steps: Generator[StepResult, None, None], loader: Loader
    ) -> Generator[StepResult, None, None]:
        """Yields the first results of `steps`, the steps of an epoch, and counts what they send,
        until `sent` is known or the epoch ends; the caller goes on with the rest. Yields nothing if
        `sent` is known from an earlier epoch, or if no batch is full."""
        n = len(loader.split.y)
        # rounds end with the epoch too: in some runs none of a later epoch is whole
        is_epoch = self._samples > (self._batch if self._has_begun else n)
        counted = n if is_epoch else self._samples
        if self.sent is not None or counted < self._batch:
            return
        earlier = self._so_far() if self._has_begun else None
        self._has_begun = True
        none = dict.fromkeys(TRAFFIC_AXES, Traffic())
        sent, samples = none, 0
        for result in steps:
            self._complete()
            if earlier is not None:
                after = self._so_far()
                sent = {axis: sent[axis] + after[axis] - earlier[axis] for axis in sent}
                samples += result.samples
                if samples == counted:
                    self.sent = {axis: sent[axis].over(-(-counted // self._batch)) for axis in sent}
            yield result
            if self.sent is not None:
                return
            if not is_epoch:
                sent, samples = none, 0
            if earlier is not None or not is_epoch:
                earlier = self._so_far()

    def _so_far(self) -> AxisTraffic:
        return sent_along(self._layout, self._layout.all.comms_of_rank)


def sent_along(layout: Layout, comms: Iterable[Comm]) -> AxisTraffic:
    """Returns a dict: axis of the mesh -> the bytes and messages that this rank has sent so far
    along it, over those of the communicators `comms` that belong to the axis."""
    along = {**layout.axis, "dp": layout.replicas, "model": layout.model}
    names = {axis: comm.name for axis, comm in along.items() if comm.size > 1}
    sent = dict.fromkeys(TRAFFIC_AXES, Traffic())
    for comm in dict.fromkeys(comms):
        matching = (axis for axis, name in names.items() if f"{comm.name}/".startswith(f"{name}/"))
        axis = next(matching, "dp" if comm.name.startswith(f"{layout.all.name}/") else None)
        if axis is not None and comm.size > 1:
            sent[axis] += Traffic(sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages))
    return sent
