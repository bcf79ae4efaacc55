"""Recorded passes of the stages of a rank: recorded once, compared with the tape, then replayed.

key        shapes of the inputs, attributes of modules, which gradients are there already
PassList   recorded for each key, twice: both recordings must agree
compared   the first pass runs by the tape, and beside it as a replay: both must have the same bits
Replay     one for each micro-batch in flight, used again and again
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import UnlikeError
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.data.inputs import like, parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.pass_list import PassList, record, same_calls
from nnmpi.nn.passes import LOCAL, Pass
from nnmpi.nn.single_store import Store
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.step.ports import LossSink, PassState, Samples, Stage, call, run_stage
from nnmpi.parallel.step.replay import ComparedRoot, NotedStats, RecalledStats, Replay, same_bits

MOST_LISTS = 16
"""The number of lists of a stage at which it is given up: each pass seems to be another one."""

_OF_PARAMETER = attrgetter("has_grad", "requires_grad", "store")
_OF_MODULE = attrgetter("_changes", "training")


def _is_own(part: Any) -> bool:
    """True if a layer or a loss is nnmpi's own and has no hooks: it calls no code of users."""
    is_own = type(part).__module__.partition(".")[0] == "nnmpi"
    return is_own and isinstance(part, Module) and not part._hooks


class MicroBatch(NamedTuple):
    """The micro-batch of a pass; `arrays` are inputs, labels and the numbers of samples."""

    state: PassState
    number: int
    current: Pass
    arrays: Sequence[Array]


class StageLists:
    """The lists of a stage that computes the loss from samples.

    always_compared   every pass runs by the tape too
    replays           the number of passes that were replayed alone
    reason            why passes run by the tape; None if they are replayed
    """

    def __init__(self, stage: Stage, always_compared: bool) -> None:
        self._stage, self._always_compared = stage, always_compared
        self._modules, self._parameters = list[Module](), list[Parameter]()
        self._states: tuple[Any, ...] | None = None
        self._in_flight = 0
        self._lists = dict[Any, PassList | None]()
        self._free, self._compared = dict[Any, list[Replay]](), set[Any]()
        self.reason, self.replays = self._refusal(), 0

    def _refusal(self) -> str | None:
        source, sink = self._stage.source, self._stage.sink
        if not isinstance(source, Samples) or not isinstance(sink, LossSink):
            return "stages of a pipeline are not replayed yet"
        if not all(_has_fixed_memory(p.store) for p in self._stage.module.parameters()):
            return "the store moves parameters or gradients in memory"
        return None

    def _look_again(self) -> None:
        """Finds the modules of the stage and of the loss, which may have changed."""
        module, sink = self._stage.module, self._stage.sink
        assert isinstance(sink, LossSink)
        criterion: Any = sink.criterion
        self._modules, self._parameters = [*module.modules()], [*module.parameters()]
        if isinstance(criterion, Module):
            self._modules += criterion.modules()
        foreign = [part for part in (*self._modules, criterion) if not _is_own(part)]
        if foreign:
            self.reason = f"{type(foreign[0]).__name__} is not a layer of nnmpi without hooks"
        self._states = (*map(_OF_MODULE, self._modules),)

    def root(self, state: PassState, number: int, current: Pass) -> Any:
        """The root of the pass of a micro-batch."""
        if self.reason is None and self._in_flight:
            self.reason = "several micro-batches are in flight"
        if self.reason is None and not (state.stats is LOCAL or isinstance(state.stats, Synced)):
            self.reason = "passes that run twice, or slice by slice, are not replayed yet"
        if self.reason is None and (*map(_OF_MODULE, self._modules),) != self._states:
            self._look_again()
        if self.reason or not recording.get():
            return run_stage(self._stage, state, number, current)
        sink = self._stage.sink
        assert isinstance(sink, LossSink)
        inputs = [t.data for _, t in parts(state.input)]
        arrays = [*inputs, sink.labels(number), current.samples]
        micro = MicroBatch(state, number, current, arrays)
        key = self._key(micro)
        if key not in self._compared or self._always_compared:
            return self._beside_tape(key, micro)
        replay = self._replay(key)
        try:
            replay.forward(arrays, current.step, state.stats)
        except UnlikeError:
            self._free[key].append(replay)
            return run_stage(self._stage, state, number, current)
        self.replays += 1
        return self._flying(replay)

    def _flying(self, root: Any) -> Any:
        """Counts a root until its backward pass, which may find other gradients than this one."""
        self._in_flight += 1
        root.at_end = self._landed
        return root

    def _landed(self) -> None:
        self._in_flight -= 1

    def _key(self, micro: MicroBatch) -> Any:
        """All that decides which calls a pass makes."""
        of_ranks = micro.current.batch, micro.number  # they tell how many samples each has
        return (
            None if micro.state.stats is LOCAL else of_ranks,
            *((a.shape, a.dtype) for a in micro.arrays),
            *map(_OF_PARAMETER, self._parameters),
            self._states,
            *map(id, self._buffers()),
        )

    def _replay(self, key: Any) -> Replay:
        """A replay that is free, or a new one."""
        passes, free = self._lists[key], self._free.setdefault(key, [])
        assert passes is not None
        return free.pop() if free else Replay(passes, free)

    def _buffers(self) -> list[Array]:
        arrays = (getattr(m, name) for m in self._modules for name in m._buffers)
        return [array for array in arrays if array is not None]

    def _beside_tape(self, key: Any, micro: MicroBatch) -> Any:
        """The root of a pass that runs by the tape, and by a replay that is compared with it."""
        buffers, noted = self._buffers(), NotedStats(micro.state.stats)
        before = [array.copy() for array in buffers]
        root = run_stage(
            self._stage, micro.state, micro.number, micro.current._replace(batch_stats=noted)
        )
        if key not in self._lists:
            self._lists[key] = self._recorded(micro, [moments.n for moments in noted.moments_of])
        if self._lists[key] is None:
            return root
        wanted = [array.copy() for array in (root.data, *buffers)]
        _write(buffers, before)
        replay = self._replay(key)
        try:
            loss = replay.forward(micro.arrays, micro.current.step, RecalledStats(noted))
            same_forward = all(map(same_bits, wanted, (loss, *buffers)))
        except UnlikeError:
            self._free[key].append(replay)
            return root
        finally:
            _write(buffers, wanted[1:])

        def ended(same: bool) -> None:
            if same and same_forward:
                self._compared.add(key)
            else:
                self.reason = self.reason or "a recorded pass has other bits than the tape"

        return self._flying(ComparedRoot(root, replay, self._parameters, ended))

    def _recorded(self, micro: MicroBatch, counts: Sequence[int]) -> PassList | None:
        """The list of a pass, in which BatchNorm layers see so many numbers; None if it cannot be
        recorded."""
        module, sink = self._stage.module, self._stage.sink
        assert isinstance(sink, LossSink)
        if len(self._lists) == MOST_LISTS:
            self.reason = f"each of {MOST_LISTS} passes was another one"
            return None

        def loss_of(module: Module, inputs: Sequence[Any]) -> Tensor:
            *given, labels = inputs
            tensors = like(micro.state.input, [*map(Tensor, given)])
            return sink.loss_of(call(module, tensors), labels)

        *inputs, samples = micro.arrays
        batch, is_alone = micro.current.batch, micro.state.stats is LOCAL
        try:
            first, second = (
                record(module, loss_of, inputs, samples, batch, None if is_alone else counts)
                for _ in range(2)
            )
        except NumbersReadError as error:
            self.reason = str(error)
            return None
        if not same_calls(first, second):
            self.reason = "two recordings of a pass differ"
            return None
        return first


def _write(arrays: Sequence[Array], values: Sequence[Array]) -> None:
    for array, value in zip(arrays, values, strict=True):
        array[...] = value


def _has_fixed_memory(store: Store | None) -> bool:
    """True if parameters and gradients stay where they are."""
    if not isinstance(store, FlatStore):
        return False
    kind = type(store)
    return (kind.value, kind.grad_memory) == (FlatStore.value, FlatStore.grad_memory)


class ReplayedStages:
    """Runs the stages of a rank from recorded passes where it can, and else by module and tape."""

    def __init__(self, always_compared: bool) -> None:
        self._always_compared = always_compared
        self.lists = dict[int, StageLists]()

    def __call__(self, stage: Stage, state: PassState, number: int, current: Pass) -> Any:
        """The root of the pass of a micro-batch."""
        lists = self.lists.get(id(stage.module))
        if lists is None:
            lists = self.lists[id(stage.module)] = StageLists(stage, self._always_compared)
        return lists.root(state, number, current)
