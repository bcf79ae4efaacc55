"""RecordableStage: records the passes of a stage, twice or more, and notices when the modules or
values that its code reads have changed. All recordings must agree."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from nnmpi.arrays import meta
from nnmpi.arrays.backend import Array, Backend, xp_of
from nnmpi.arrays.cgroup import memory_available
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.data.inputs import like, parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import (
    KEY_OF_MODULE,
    KEY_OF_PARAMETER,
    LOCAL,
    Pass,
    ReplayStats,
    key_of_context,
)
from nnmpi.nn.record import KeyedPass, StatsOfRanks, repeated, same_calls
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.users_code import ReadValues, UnfitError, foreign, name_of
from nnmpi.parallel.arrangement.cluster import DEVICE_PARTS
from nnmpi.parallel.step.buffers import Buffer, Received
from nnmpi.parallel.step.objective import SumOfMean
from nnmpi.parallel.step.ports import LossSink, Tensors
from nnmpi.parallel.step.recorded_pass import Forward, PlannedPass, RecordedPass, record
from nnmpi.parallel.step.recorded_wires import LoggedWire, wires
from nnmpi.parallel.step.stage import PassState, Stage, call, joined

CHANGES = "forward changes what it reads, or draws random numbers itself"


class MicroBatch(NamedTuple):
    """A micro-batch that is about to pass through a stage.

    state    its input, and what its backward pass needs
    number   its number in the step
    current  the Pass: step and samples, on which random numbers depend
    arrays   its inputs, its labels (in the last stage), and the indices of its samples
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
    return Received(array, lambda: Buffer(cast(Any, None), array, xp_of(array).empty_like(array)))


class RecordableStage:
    """Records the passes of a stage, and says what decides which calls they make. `of_users`: code
    outside of this library may be recorded too; `on_node` ranks share the memory of the node."""

    def __init__(self, stage: Stage, on: Backend, of_users: bool, on_node: int) -> None:
        self._stage, self._on, self._of_users, self._on_node = stage, on, of_users, on_node
        self._modules, self._parameters = list[Module](), list[Parameter]()
        self._of_modules = list[Any]([None])  # unlike any: modules are looked at first
        self._values, self._criteria = ReadValues(), list[Module]()
        self._trained = dict[Any, frozenset[Parameter]]()  # by which parameters need gradients

    def look_again(self) -> None:
        """Finds the modules of stage and loss; raises UnfitError if one may not be recorded."""
        module, sink = self._stage.module, self._stage.sink
        self._modules, self._parameters = [*module.modules()], [*module.parameters()]
        criterion: Any = sink.criterion if isinstance(sink, LossSink) else None
        if isinstance(criterion, SumOfMean):
            criterion = criterion.function
        self._criteria = [criterion] if isinstance(criterion, Module) else []
        self._modules += [m for part in self._criteria for m in part.modules()]
        functions = [] if criterion is None or self._criteria else [criterion]
        of_stage = [*self._modules, *functions]
        self._of_modules = [*map(KEY_OF_MODULE, self._modules)]
        if (name := foreign(of_stage)) and not self._of_users:
            raise UnfitError(f"{name} is not nnmpi's own code; --compile replays it too")
        self._values = _values_of(of_stage)

    def has_changed(self) -> bool:
        """True if a module was changed, or a value that users' code reads."""
        of_modules = [*map(KEY_OF_MODULE, self._modules)]
        return self._of_modules != of_modules or not self._values.is_same()

    @property
    def key(self) -> tuple[Any, ...]:
        """All that decides which calls a pass makes, besides its micro-batch."""
        return (
            *key_of_context(self._on),
            *map(KEY_OF_PARAMETER, self._parameters),
            *self._of_modules,
            *self._values.state,
            *map(id, self.buffers()),
        )

    def buffers(self) -> list[Array]:
        """Returns the buffers of the modules, such as running statistics."""
        return [t._array for _, _, t in buffers_of(self._modules)]

    def captured(self, micro: MicroBatch) -> Any:
        """Lets the device capture a pass; raises NumbersReadError if it cannot."""
        device = DEVICE_PARTS.row(self._on.name)
        if device is None:
            raise NumbersReadError(f"nothing here captures passes on the device {self._on.name}")
        forward = _forward(self._stage, micro.state.input)
        with self._values.restored() as has_changed:
            captured = device.captured(self._on, self._stage, self._criteria, forward, micro)
            if has_changed():
                raise NumbersReadError(CHANGES)
        return captured

    def planned(self, micro: MicroBatch, counts: Sequence[int]) -> PlannedPass:
        """Records a pass, and returns it with its memory plan; raises NumbersReadError if it is
        unfit. `counts` has the number of values in each BatchNorm, over all ranks."""
        stage, kind = self._stage, micro.state.kind
        assert kind is not None
        of_units = stage.of_units, stage.absent, stage.unrepeated
        planned = PlannedPass(self._recorded(micro, counts), kind.in_flight, *of_units)
        needed = tuple(p._requires_grad for p in self._parameters)
        if self._trained.setdefault(needed, planned.trained) != planned.trained:
            # whether a pass adds to a gradient is known of all parameters together
            raise NumbersReadError("micro-batches use different parameters")
        self._check_memory(planned)
        return planned

    def _recorded(self, micro: MicroBatch, counts: Sequence[int]) -> RecordedPass:
        """Records a pass two times or more; raises NumbersReadError if it is unfit."""
        kind, stats, of_pass = micro.state.kind, micro.state.stats, micro.current
        assert kind is not None
        forward = _forward(self._stage, micro.state.input)
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
