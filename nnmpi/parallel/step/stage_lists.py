"""Records the passes of a pipeline stage as lists of function calls on arrays, checks them, then
replays the lists in place of modules and autograd (called the tape here).

key        what decides which calls a pass makes: shapes of the inputs, attributes of modules, which
           parameters have a gradient already
recorded   the calls, for each key: recorded twice after the first pass with this key, and both
           recordings must agree
compared   the second pass runs by the tape and as a replay: both must have the same bits
Replay     runs them for one micro-batch; each micro-batch in flight has one, used again and again
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

from nnmpi import addons
from nnmpi.arrays import meta
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.cgroup import memory_available
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import UnlikeError
from nnmpi.autograd import Tensor
from nnmpi.data.inputs import like, parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import (
    KEY_OF_MODULE,
    KEY_OF_PARAMETER,
    LOCAL,
    BatchStats,
    Pass,
    ReplayStats,
    key_of_context,
)
from nnmpi.nn.record import KeyedPass, StatsOfRanks, repeated, same_calls
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.store import FlatStore
from nnmpi.nn.users_code import ReadValues, UnfitError, foreign, name_of
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.step.beside_tape import (
    Compared,
    ForwardBeside,
    NotedStats,
    RecalledStats,
)
from nnmpi.parallel.step.buffers import Buffer, Received
from nnmpi.parallel.step.channels import Inlet, Outlet
from nnmpi.parallel.step.exchanges import LoggedWire, Notes, wires
from nnmpi.parallel.step.objective import SumOfMean
from nnmpi.parallel.step.ports import (
    LossSink,
    PassState,
    Samples,
    Stage,
    StagePass,
    TapePass,
    Tensors,
    by_tape,
    call,
    joined,
    run_stage,
)
from nnmpi.parallel.step.recorded_pass import Forward, PlannedPass, RecordedPass, record
from nnmpi.parallel.step.replay import Memory, Replay

MOST_LISTS = 16
"""The most recorded passes of a stage; with more, each seems to be another."""


CHANGES = "forward changes what it reads, or draws random numbers itself"

Acquire: TypeAlias = Callable[[], Replay]
"""Returns the Replay of a recorded pass that no micro-batch uses now."""


class MicroBatch(NamedTuple):
    """A micro-batch that is about to pass through a pipeline stage.

    state    its input, and what its backward pass needs
    number   its number in the step
    current  the Pass: step and samples, on which random numbers depend
    arrays   its inputs, its labels (in the last stage), and the indices of its samples in the data
             set
    """

    state: PassState
    number: int
    current: Pass
    arrays: Sequence[Array]


def _forward(stage: Stage, given: Tensors) -> Forward:
    """Returns a function of a stage's forward pass on arrays without data."""

    def forward(arrays: Sequence[Any]) -> tuple[Sequence[Tensor], Tensor]:
        pairs = zip((t for _, t in parts(given)), arrays, strict=False)
        inputs = [_input_like(t, array) for t, array in pairs]
        y = call(stage.module, like(given, inputs))
        received = [t for t in inputs if isinstance(t, Received)]
        if isinstance(stage.sink, LossSink):
            return received, stage.sink.loss_of(y, arrays[len(inputs)])
        return received, joined(y)

    return forward


def _input_like(t: Tensor, array: Any) -> Tensor:
    """Returns a tensor without data for an input, with a gradient if it is sent back."""
    if not isinstance(t, Received):
        return Tensor(array)
    return Received(array, lambda: Buffer(cast(Any, None), array, meta.like(array)))


class StageLists:
    """The recorded passes of a stage, and the choice between replaying one and running modules and
    autograd (the tape). There is one recorded pass for each key: all that decides which calls a
    pass makes.

    always_compared   True: every pass runs both ways, and the results are compared
    of_users          True: code outside of this library may be recorded too
    on_node           the number of ranks that share the memory of the node
    compared          the keys of recorded passes that gave the same bits as the tape
    replays           the number of passes that ran as a replay only
    calls             the number of function calls in the longest recorded pass
    reason            why all passes run by the tape; None if they are replayed
    version           returns another number after code of the user has run between two steps: then
                      the stage is looked at again, since it may have changed
    tell              (these lists): reports to the log whether passes are replayed
    """

    def __init__(
        self,
        stage: Stage,
        on: Backend,
        always_compared: bool,
        of_users: bool,
        on_node: int,
        version: Callable[[], int],
        tell: Callable[["StageLists"], None],
        reason: str | None,
    ) -> None:
        self._version, self._tell = version, tell
        self._looked_at: int | None = None  # the version
        self._stage, self._always_compared, self._of_users = stage, always_compared, of_users
        self._on, self._on_node, self._seen = on, on_node, set[Any]()
        self._modules, self._parameters = list[Module](), list[Parameter]()
        self._of_modules = list[Any]([None])  # unlike any: modules are looked at first
        self._values, self._criteria = ReadValues(), list[Module]()
        self._trained = dict[Any, frozenset[Parameter]]()  # by which parameters need gradients
        self._lists = dict[Any, Acquire | None]()
        self._of_stage: Any = None  # what decides which calls a pass makes, besides its micro-batch
        self._ready = dict[Any, Acquire]()  # by the key of the micro-batch
        self.compared, self.memory = set[Any](), Memory()
        self.reason, self.replays, self.calls = reason, 0, 0
        if not isinstance(stage.source, Samples | Inlet) or not isinstance(
            stage.sink, LossSink | Outlet
        ):
            self.reason = "stages get their inputs in another way than by messages"
        if not all(isinstance(p.store, FlatStore) for p in stage.module.parameters()):
            self.reason = "a parameter has memory of its own, as frozen ones have"

    def _look_again(self) -> None:
        """Finds the modules of stage and loss; sets `reason` if one is unfit."""
        module, sink = self._stage.module, self._stage.sink
        self._modules, self._parameters = [*module.modules()], [*module.parameters()]
        criterion: Any = sink.criterion if isinstance(sink, LossSink) else None
        if isinstance(criterion, SumOfMean):
            criterion = criterion.function
        self._criteria = [criterion] if isinstance(criterion, Module) else []
        self._modules += [m for part in self._criteria for m in part.modules()]
        functions = [] if criterion is None or self._criteria else [criterion]
        of_stage = [*self._modules, *functions]
        if (name := foreign(of_stage)) and not self._of_users:
            self.reason = f"{name} is not nnmpi's own code; --compile replays it too"
        try:
            if self.reason is None:
                self._values = _values_of(of_stage)
        except UnfitError as error:
            self.reason = str(error)
        self._of_modules = [*map(KEY_OF_MODULE, self._modules)]

    def _has_changed(self) -> bool:
        """True if a module was changed, or a value that users' code reads."""
        of_modules = [*map(KEY_OF_MODULE, self._modules)]
        return self._of_modules != of_modules or not self._values.is_same()

    def run(self, state: PassState, number: int, current: Pass) -> Generator[None, None, StagePass]:
        """Runs the forward pass of micro-batch `number`, and returns a StagePass, which runs its
        backward pass. Yields between units.

        A recorded pass is replayed if it has the key of this micro-batch and the stage (all that
        decides which calls a pass makes) and has once been compared with modules and autograd, with
        the same bits. Otherwise modules and autograd run."""
        if self._looked_at != self._version():
            self._look()
        if self.reason is not None:
            return (yield from self._refused(state, number, current))
        sink, stats = self._stage.sink, state.stats
        tensors = [t for _, t in parts(state.input)]
        arrays = [t.array for t in tensors]
        arrays += [sink.labels(number)] if isinstance(sink, LossSink) else []
        arrays.append(current.samples)
        # how many samples of a micro-batch other ranks have depends on its number
        at = None if _of_first_run(stats) is LOCAL else number
        key = current.batch, at, type(stats), state.kind, *((a.shape, a.dtype) for a in arrays)
        if (acquire := self._ready.get(key)) is None:
            return (yield from self._unready(key, MicroBatch(state, number, current, arrays)))
        replay = acquire()
        try:  # what raises comes before the first stop
            yield from replay.forward(arrays, current.step, stats)
        except UnlikeError:
            replay.free()
            return (yield from by_tape(self._stage, state, number, current))
        self.replays += 1
        replay.received = [t for t in tensors if isinstance(t, Received)]
        return replay

    def _look(self) -> None:
        """Looks whether the stage has changed, and which passes can be replayed."""
        self._looked_at = self._version()
        if self.reason is None and self._has_changed():
            self._look_again()
        if self.reason is not None:
            return
        of_stage = (
            *key_of_context(self._on),
            *map(KEY_OF_PARAMETER, self._parameters),
            *self._of_modules,
            *self._values.state,
            *map(id, self._buffers()),
        )
        if of_stage != self._of_stage:
            self._of_stage, self._ready = of_stage, {}

    def _refused(
        self, state: PassState, number: int, current: Pass
    ) -> Generator[None, None, StagePass]:
        """Runs the forward pass of a micro-batch by modules and autograd, because of `reason`."""
        if self._lists:  # they are not needed any more
            self.memory.clear()
            self._lists, self._ready, self.memory = {}, {}, Memory()
        self._tell(self)
        return (yield from by_tape(self._stage, state, number, current))

    def _unready(self, key: Any, micro: MicroBatch) -> Generator[None, None, StagePass]:
        """Runs the forward pass of a micro-batch whose `key` no pass has that can be replayed now:
        as the first replay of a pass that has been compared, or else by modules and autograd."""
        state, number, current, _ = micro
        first_run, whole_key = _of_first_run(state.stats), (self._of_stage, key)
        if not (first_run is LOCAL or isinstance(first_run, Synced)):
            self.reason = "passes that run slice by slice are not replayed yet"
        elif state.kind is None:
            self.reason = "steps overlap"
        if self.reason is not None:
            run: StagePass = yield from self._refused(state, number, current)
        elif whole_key in self.compared and not self._always_compared:
            acquire = self._lists[whole_key]
            assert acquire is not None
            self._ready[key] = acquire
            run = yield from self.run(state, number, current)
        elif self._on.is_host or whole_key in self._seen:
            run = self._beside_tape(whole_key, micro)
        else:  # kernels are compiled first
            self._seen.add(whole_key)
            run = yield from by_tape(self._stage, state, number, current)
        self._tell(self)
        return run

    def _buffers(self) -> list[Array]:
        return [t.operand for _, _, t in buffers_of(self._modules)]

    def _beside_tape(self, key: Any, micro: MicroBatch) -> StagePass:
        """Runs a forward pass by modules and autograd (the tape), and returns a StagePass for its
        backward pass. The first pass with this key is recorded after it has run, when the number of
        values that other ranks have for BatchNorm is known. Each later pass also runs as a replay
        of the recording, and the results are compared."""
        notes, beside = Notes(), None
        following: AbstractContextManager[None] = nullcontext()
        noted = NotedStats(micro.state.stats, notes)
        if (acquire := self._lists.get(key)) is not None:
            replay, stats = acquire(), RecalledStats(noted, notes)
            forward = replay.forward(micro.arrays, micro.current.step, stats)
            beside = ForwardBeside(replay, forward, self._buffers(), notes)
            following = self._stage.beside(beside.follow)
        current = micro.current._replace(batch_stats=noted)
        with following, notes.noting():
            root = run_stage(self._stage, micro.state, micro.number, current)
        on_tape = TapePass(self._stage, micro.state, root)
        if key not in self._lists:
            self._lists[key] = self._acquire_of(micro, [made.n for made in noted.moments_of])
        while beside is not None and beside.follow():
            pass
        if beside is None or not beside.is_alike:
            return on_tape
        same_forward = beside.is_same(on_tape.outputs)

        def ended(same: bool) -> None:
            if same and same_forward:
                self.compared.add(key)
            else:
                self.reason = self.reason or "a recorded pass has other bits than the tape"

        return Compared(on_tape, beside.replay, micro.state, self._stage, notes, ended)

    def _acquire_of(self, micro: MicroBatch, counts: Sequence[int]) -> Acquire | None:
        """Records the pass of a micro-batch, or lets the device capture it; returns what provides
        its replays, or None, with `reason` set, if it cannot be replayed. `counts` has the number
        of values in each BatchNorm, over all ranks."""
        if len(self._lists) == MOST_LISTS:
            self.reason = f"each of {MOST_LISTS} passes was another one"
            return None
        forward = _forward(self._stage, micro.state.input)
        try:
            if not self._on.is_host:
                replay = self._captured(forward, micro)
                self.calls = max(self.calls, replay.calls)
                return lambda: replay
            planned = self._planned(self._recorded(forward, micro, counts), micro)
        except NumbersReadError as error:
            self.reason = str(error)
            return None
        self.calls = max(self.calls, planned.calls)
        return partial(self.memory.acquire, planned)

    def _captured(self, forward: Forward, micro: MicroBatch) -> Replay:
        """Lets the device capture a pass; raises NumbersReadError if it cannot."""
        capture = addons.row("captures", self._on.name)
        if capture is None:
            raise NumbersReadError(f"nothing here captures passes on the device {self._on.name}")
        with self._values.restored() as has_changed:
            captured: Replay = capture(self._on, self._stage, self._criteria, forward, micro)
            if has_changed():
                raise NumbersReadError(CHANGES)
        return captured

    def _recorded(self, forward: Forward, micro: MicroBatch, counts: Sequence[int]) -> RecordedPass:
        """Records a pass two times or more; raises NumbersReadError if it is unfit."""
        kind, stats, of_pass = micro.state.kind, micro.state.stats, micro.current
        assert kind is not None
        roots, again = (self._stage.module, *self._criteria), isinstance(stats, ReplayStats)

        def record_it() -> RecordedPass:
            made_by = LOCAL if stats is LOCAL else StatsOfRanks(counts, tracks=not again)
            current = KeyedPass.of(of_pass.samples, of_pass.batch, made_by, meta.like)
            return record(roots, forward, micro.arrays[:-1], current, kind.adds, kind.halves)

        with self._values.restored() as has_changed, wires(LoggedWire):
            try:
                first, *others = repeated(record_it, 3 if self._values.is_foreign else 2)
            except NumbersReadError:
                raise
            except Exception as error:  # code that reads values by itself gets wrong ones
                name = type(error).__name__
                raise NumbersReadError(f"a pass cannot be recorded: {name}: {error}") from None
            if first.unfit:
                raise NumbersReadError(first.unfit)
            if has_changed():
                raise NumbersReadError(CHANGES)
        if not all(same_calls(first.calls, other.calls) for other in others):
            raise NumbersReadError("two recordings of a pass differ")
        return first

    def _planned(self, recorded: RecordedPass, micro: MicroBatch) -> PlannedPass:
        """Returns a pass with its memory plan; raises NumbersReadError if it is unfit."""
        stage, kind = self._stage, micro.state.kind
        assert kind is not None
        of_units = stage.of_units, stage.absent, stage.unrepeated
        planned = PlannedPass(recorded, kind.in_flight, *of_units)
        needed = tuple(p.needs_grad for p in self._parameters)
        if self._trained.setdefault(needed, planned.trained) != planned.trained:
            # whether a pass adds to a gradient is known of all parameters together
            raise NumbersReadError("micro-batches use different parameters")
        self._check_memory(planned)
        return planned

    def _check_memory(self, planned: PlannedPass) -> None:
        """Raises NumbersReadError if memory is too short to compare a replay of the pass `planned`
        with autograd: this needs the activations twice and the gradients up to three times."""
        gradients = sum(p.size * p.dtype.itemsize for p in planned.trained)
        size, free = planned.kept.size + planned.scratch.size + 2 * gradients, memory_available()
        if free is not None and 2 * size * self._on_node > free:
            raise NumbersReadError(
                f"of {free:,} bytes that are free on the node, a rank would need {size:,} more to "
                "see that replays are right"
            )


def _of_first_run(stats: BatchStats) -> BatchStats:
    return stats.inner if isinstance(stats, ReplayStats) else stats


def _values_of(parts: Sequence[Any]) -> ReadValues:
    """Returns the values that code reads; raises UnfitError if one may change."""
    values = ReadValues()
    if foreign(parts):
        _read_code(values, parts)
    else:
        for module in (part for part in parts if isinstance(part, Module)):
            values.add_module(module)
    values.note()
    return values


def _read_code(values: ReadValues, parts: Sequence[Any]) -> None:
    from nnmpi.nn.code_reader import CodeReader  # rarely

    reader = CodeReader(values, [part for part in parts if isinstance(part, Module)])
    for part in parts:
        if not isinstance(part, Module):
            reader.read(part, name_of(part))
    reader.finish()
