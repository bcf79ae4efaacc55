"""GraphRecorder: the layers and ops of one pass over a model, as the nodes of a graph."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array
from nnmpi.nn.graph import Call, Kept, Node, Use, Value, leaves, rebuilt, variables_of
from nnmpi.nn.kept import kept, memory_of, nbytes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import groups, only_runs_layers, steps_of

STEPS = "its forward depends on the step or on which samples there are"
READS = "its forward reads numbers of a tensor"
MAKES = "its forward uses a tensor or an array that is no attribute of a module"
WRITES = "its forward writes to a tensor in place"
NO_GRAD = "its forward uses no_grad"
DETACHES = "its forward detaches a tensor"
CHANGES = "its forward changes attributes"
HOLDS = "it has a buffer of its own"


class Traced(Tensor):
    """A tensor whose numbers `forward` of a module that is looked into does not read.

    The pass under way is told when numbers or lengths are read, and when it is written to.
    """

    __slots__ = ()

    @property
    def data(self) -> Array:
        """The array."""
        tell(READS)
        return self.operand

    @data.setter
    def data(self, value: Array) -> None:
        _DATA.__set__(self, value)

    @property
    def operand(self) -> Array:
        return _DATA.__get__(self)

    @property
    def shape(self) -> tuple[int, ...]:
        record = recording.get()
        if isinstance(record, GraphRecorder):
            record.measure(self)
        return tuple(self.operand.shape)

    @property
    def ndim(self) -> int:
        return int(self.operand.ndim)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.operand.dtype
        return dtype

    def __len__(self) -> int:
        return len(self.operand)

    def detach(self) -> Tensor:
        tell(DETACHES)
        return super().detach()

    def mark_written(self) -> None:
        tell(WRITES)
        super().mark_written()


Traced.__name__ = Tensor.__name__  # as messages to users call it


_DATA: Any = vars(Tensor)["data"]


class Found(NamedTuple):
    """What one pass has found."""

    nodes: list[Node]
    tensors: list[Tensor]  # by the number of the edge
    outputs: Any
    order: list[int]
    calls: list[Call]
    sequences: set[str]
    shapes: set[int]
    kept: list[Kept]  # its bytes are those of the samples of the pass
    loss: float = 0  # bytes


class ConflictError(Exception):
    """A module has to be taken whole: its path, and why."""

    def __init__(self, path: str, note: str) -> None:
        self.path, self.note = path, note


class GraphRecorder:
    """Records the layers and ops of one pass.

    `whole` are the modules to take whole, by path, with the reasons.
    """

    def __init__(self, model: Module, whole: Mapping[str, str]) -> None:
        self.model, self._whole = model, whole
        self._paths = {id(m): path for path, m in reversed([*model.named_modules()])}
        self.variables, self._numbers = variables_of(model)
        self._known = {id(value): value for m in model.modules() for value in vars(m).values()}
        self.found = Found([], [], None, [], [], set(), set(), [])
        self._edges: dict[int, int] = {}
        self._within: list[Module] = []
        self._unit: dict[int, None] | None = None  # the variables that a unit has used so far

    def refuse(self, what: str) -> None:
        """The forward of a module does this: it is taken whole, if it is looked into."""
        if self._unit is None and self._within:
            raise ConflictError(self._path(self._within[-1]), what)

    def enter_no_grad(self) -> None:
        """Called before no_grad (see `nnmpi.autograd.recording`)."""
        self.refuse(NO_GRAD)

    def measure(self, tensor: Tensor) -> None:
        """Lengths of a tensor were read."""
        if self._unit is None and id(tensor) in self._edges:
            self.found.shapes.add(self._edges[id(tensor)])

    def enter(self, tensor: Tensor) -> Tensor:
        """A tensor that comes from outside, as an edge."""
        traced = Traced(tensor.operand, tensor.requires_grad)
        self._edges[id(traced)] = len(self.found.tensors)
        self.found.tensors.append(traced)
        return traced

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Tensor
    ) -> None:
        """Called with each op (see `nnmpi.autograd.recording`)."""
        used = [self._numbers[id(a)] for a in args if id(a) in self._numbers]
        if y.requires_grad:
            self.found.order.extend(v for v in used if self.variables[v].is_trained)
        if self._unit is not None:
            self._unit.update(dict.fromkeys(used))
            for a in args:
                if isinstance(a, Tensor) and a.node is None and not isinstance(a, Traced):
                    self._refuse_outside(a)
            return
        arguments = rebuilt((tuple(args), dict(options)), self._argument)
        y.__class__ = Traced
        self._keep(y, args, 1)
        name, within = getattr(op, "__name__", "op"), self._path(self._within[-1])
        self._add(Node(name, None, {}, op, arguments, (), None, within, tuple(used)), y)

    def forward(self, module: Module, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Stands for the `forward` of a module."""
        in_sequence = only_runs_layers(module) and _is_of_class(module, forward)
        if self._unit is not None or (in_sequence and not module._modules):
            return forward(*args, **named)
        path = self._path(module)
        if not module._modules or module._buffers or path in self._whole:
            return self._layer(module, path, forward, args, named)
        self._within.append(module)
        if in_sequence:  # which would run some of them as one op
            self.found.sequences.add(path)
            result = self._in_sequence([*module._modules.values()], *args, **named)
        else:
            start, before = len(self.found.nodes), _plain(module)
            result = forward(*args, **named)
            if before | _plain(module) != before:
                self.refuse(CHANGES)
            rebuilt(result, self._argument)  # which it has made itself, if it is not in the graph
            self._call(path, range(start, len(self.found.nodes)), (args, named), result)
        self._within.pop()
        return result

    def _call(self, path: str, nodes: range, arguments: Any, result: Any) -> None:
        """Keeps the call of a module, unless it is given or returns what is not in the graph."""
        if nodes:
            with suppress(ConflictError, ValueError):
                templates = (rebuilt(tree, self._argument) for tree in (arguments, result))
                self.found.calls.append(Call(path, nodes, *templates))

    def _in_sequence(self, layers: list[Module], *args: Any, **named: Any) -> Any:
        """The layers one by one; what those keep that would run as one op is found beside it."""
        for group in groups(layers):
            before = args
            for layer in group:
                args, named = (layer(*args, **named),), {}
            if len(group) > 1:
                self._unit = {}
                (step,) = steps_of(list(group))
                self._keep(step(*before), before, len(group), done=True)
                self._unit = None
        return args[0]

    def _keep(self, result: Any, arguments: Any, count: int, done: bool = False) -> None:
        """Notes what a result keeps besides its arguments and itself.

        It is that of so many nodes: of the last ones if they are `done`, else of the next one.
        """
        results = [t for t in leaves(result) if isinstance(t, Tensor) and t.requires_grad]
        given = [t for t in leaves(arguments) if isinstance(t, Tensor)]
        memory = kept(results, given)
        for t in (*results, *given):
            memory.pop(id(memory_of(t.operand)), None)
        stop = len(self.found.nodes) + (not done)
        self.found.kept.append(Kept(stop - count, stop, 0, nbytes(memory.values())))

    def close(self, outputs: Any, loss: Callable[[Any], Tensor] | None) -> Found:
        """What was found, with the model's outputs and what a loss of them keeps."""
        if loss is not None:
            self._unit = {}
            self._keep(loss(outputs), outputs, 0)
            return self.found._replace(outputs=outputs, loss=self.found.kept.pop().per_sample)
        return self.found._replace(outputs=outputs)

    def _layer(
        self,
        module: Module,
        path: str,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        arguments = rebuilt((args, named), self._argument)
        self._unit = dict.fromkeys(
            self._numbers[id(t)] for _, t in module.tensors() if id(t) in self._numbers
        )
        result = forward(*args, **named)
        used, self._unit = tuple(self._unit), None
        self._keep(result, (args, named), 1)
        within = self._path(self._within[-1]) if self._within else ""
        kind = type(module) if _is_of_class(module, forward) else Module
        settings, note = _settings(module), self._whole.get(path, "")
        if module._modules and module._buffers:
            note = note or HOLDS
        node = Node(path, kind, settings, None, arguments, (), None, within, used, note)
        return self._add(node, result)

    def _add(self, node: Node, result: Any) -> Any:
        """Adds a node with its results, each of which becomes an edge."""
        outputs: list[int] = []

        def edge(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            if id(part) in self._edges or isinstance(part, Parameter):  # returned as it was given
                part = Tensor(part.operand, part.requires_grad)
            part.__class__ = Traced
            outputs.append(len(self.found.tensors))
            self._edges[id(part)] = outputs[-1]
            self.found.tensors.append(part)
            return part

        returned = rebuilt(result, edge)
        template = rebuilt(returned, self._argument)
        self.found.nodes.append(node._replace(outputs=tuple(outputs), result=template))
        return returned

    def _argument(self, value: Any) -> Any:
        """An argument as the graph has it."""
        if id(value) in self._edges:
            return Value(self._edges[id(value)])
        if id(value) in self._numbers:
            return Use(self._numbers[id(value)])
        if isinstance(value, Tensor):
            self._refuse_outside(value)
        is_array = isinstance(value, Tensor) or backend.is_array(value)
        if is_array and id(value) not in self._known and self._within:
            raise ConflictError(self._path(self._within[-1]), MAKES)
        return value

    def _refuse_outside(self, t: Tensor) -> None:
        """Raises ValueError for a leaf that requires a gradient and is no parameter."""
        if t.requires_grad and id(t) not in self._numbers:
            raise ValueError(
                f"the model uses a tensor of shape {t.shape} that requires a gradient and is none "
                "of its parameters, so it would be neither trained nor saved: make it an attribute "
                "of a module, as nn.Parameter"
            )

    def _path(self, module: Module) -> str:
        return self._paths[id(module)]


def tell(what: str) -> None:
    """A `forward` does this, which a graph does not show: the pass under way is told."""
    record = recording.get()
    if isinstance(record, GraphRecorder):
        record.refuse(what)


def _is_of_class(module: Module, forward: Callable[..., Any]) -> bool:
    """Whether `forward` is that of the class, and not one that was set on the instance."""
    return getattr(forward, "__func__", None) is type(module).forward


def _settings(module: Module) -> dict[str, Any]:
    """The public attributes that are plain values."""
    return {name: v for name, v in _plain(module).items() if name[0] != "_"}


def _plain(module: Module) -> dict[str, Any]:
    """The attributes that are plain values."""
    return {name: v for name, v in vars(module).items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
