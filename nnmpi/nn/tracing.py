"""trace(model, inputs): the graph of a model, from two passes of zeros.

The passes run on memory of zeros, and draw no weights. One has 2 samples and runs in evaluation
mode, one has 3 and runs in training mode. Lengths that differ are of samples. Where more differs,
or a `forward` reads numbers of a tensor, on which its control flow may depend, the module with that
`forward` is taken whole, and a note says why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array
from nnmpi.nn.dimensions import named
from nnmpi.nn.graph import (
    Axis,
    Call,
    Edge,
    Graph,
    Node,
    Samples,
    Use,
    Value,
    Variable,
    leaves,
    rebuilt,
)
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.sequential import Sequential, only_runs_layers

FEW, MORE = 2, 3
"""The samples of the two passes."""

STEPS = "its forward depends on the step or on which samples there are"
READS = "its forward reads numbers of a tensor"
DIFFERS = "its forward does not do the same for any number of samples, in training and evaluation"
MAKES = "its forward uses a tensor or an array that is no attribute of a module"
HOLDS = "it has a buffer of its own"


class Traced(Tensor):
    """A tensor whose numbers `forward` of a module that is looked into does not read."""

    __slots__ = ()

    @property
    def data(self) -> Array:
        """The array; the pass under way is told that it was read."""
        record = recording.get()
        if isinstance(record, Recorder):
            record.read()
        return self.operand

    @data.setter
    def data(self, value: Array) -> None:
        _DATA.__set__(self, value)

    @property
    def operand(self) -> Array:
        return _DATA.__get__(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.operand.shape)

    @property
    def ndim(self) -> int:
        return int(self.operand.ndim)

    @property
    def size(self) -> int:
        return int(self.operand.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.operand.dtype
        return dtype

    def __len__(self) -> int:
        return len(self.operand)


_DATA: Any = vars(Tensor)["data"]


class Found(NamedTuple):
    """What one pass has found."""

    nodes: list[Node]
    tensors: list[Tensor]  # by the number of the edge
    outputs: Any
    order: list[int]
    calls: list[Call]


class ConflictError(Exception):
    """A module has to be taken whole: its path, and why."""

    def __init__(self, path: str, note: str) -> None:
        self.path, self.note = path, note


class Recorder:
    """Records the layers and ops of one pass.

    `whole` are the modules to take whole, by path, with the reasons.
    """

    def __init__(self, model: Module, whole: Mapping[str, str]) -> None:
        self.model, self._whole = model, whole
        self._paths = {id(m): path for path, m in reversed([*model.named_modules()])}
        self.variables, self._numbers = _variables(model)
        self._known = {id(value): value for m in model.modules() for value in vars(m).values()}
        self.found = Found([], [], None, [], [])
        self._edges: dict[int, int] = {}
        self._within: list[Module] = []
        self._unit: dict[int, None] | None = None  # the variables that a unit has used so far

    def read(self, what: str = READS) -> None:
        """Numbers of a tensor, or those of the pass, were read."""
        if self._unit is None and self._within:
            raise ConflictError(self._path(self._within[-1]), what)

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
        self.found.order.extend(v for v in used if self.variables[v].is_trained)
        if self._unit is not None:
            self._unit.update(dict.fromkeys(used))
            return
        arguments = rebuilt((tuple(args), dict(options)), self._argument)
        y.__class__ = Traced
        name, within = getattr(op, "__name__", "op"), self._path(self._within[-1])
        self._add(Node(name, None, {}, op, arguments, (), None, within, tuple(used)), y)

    def forward(self, module: Module, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Stands for the `forward` of a module."""
        if self._unit is not None or (only_runs_layers(module) and not len(module)):
            return forward(*args, **named)
        path = self._path(module)
        if not module._modules or module._buffers or path in self._whole:
            return self._layer(module, path, forward, args, named)
        self._within.append(module)
        if only_runs_layers(module):  # which would run some of them as one op
            result = _in_sequence(list(module), *args, **named)
        else:
            start = len(self.found.nodes)
            result = forward(*args, **named)
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
        within = self._path(self._within[-1]) if self._within else ""
        kind, settings, note = type(module), _settings(module), self._whole.get(path, "")
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
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(
                f"the model uses a tensor of shape {value.shape} that requires a gradient and is "
                "none of its parameters, so it would be neither trained nor saved: make it an "
                "attribute of a module, as nn.Parameter"
            )
        is_array = isinstance(value, Tensor) or backend.is_array(value)
        if is_array and id(value) not in self._known and self._within:
            raise ConflictError(self._path(self._within[-1]), MAKES)
        return value

    def _path(self, module: Module) -> str:
        return self._paths[id(module)]


def _in_sequence(layers: list[Module], *args: Any, **named: Any) -> Any:
    first, *rest = layers
    x = first(*args, **named)
    for layer in rest:
        x = layer(x)
    return x


def trace(
    model: Module, zeros: Callable[[int], tuple[tuple[Any, ...], Mapping[str, Any]]], dtype: Any
) -> Graph:
    """The graph of a model that is called with zeros(n), arguments for n samples.

    Raises what the model raises for such samples. The model is left as it was.
    """
    whole: dict[str, str] = {}
    while True:
        try:
            with _borrowed(model, dtype):
                few, variables = _pass(model, zeros(FEW), whole, training=False)
                more, _ = _pass(model, zeros(MORE), whole, training=True)
            return _merged(few, more, variables, whole)
        except ConflictError as found:
            whole[found.path] = found.note


def _pass(
    model: Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    whole: Mapping[str, str],
    training: bool,
) -> tuple[tuple[Found, Any], list[Variable]]:
    """What a pass finds, beside what the model was called with."""
    model.train(training)
    recorder = Recorder(model, whole)
    args, named = rebuilt(inputs, lambda x: recorder.enter(x) if isinstance(x, Tensor) else x)
    arguments = rebuilt((args, named), recorder._argument)
    modules = {id(m): m for m in model.modules()}.values()
    token, before = recording.set(recorder), current_pass.set(_Watched(0, None, UNTRACKED))
    for m in modules:
        object.__setattr__(m, "forward", partial(recorder.forward, m, m.forward))
        _forget_steps(m)
    try:
        with np.errstate(all="ignore"):
            outputs = model(*args, **named)
        outputs = rebuilt(outputs, recorder._argument)
    finally:
        for m in modules:
            object.__delattr__(m, "forward")
            _forget_steps(m)
        recording.reset(token)
        current_pass.reset(before)
    return (recorder.found._replace(outputs=outputs), arguments), recorder.variables


def _forget_steps(module: Module) -> None:
    """A Sequential keeps the `forward` of its layers: it looks them up again."""
    if isinstance(module, Sequential):
        object.__setattr__(module, "_steps", None)


class _Untracked:
    """BatchStats that leave the running statistics as they are."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return local

    def sum(self, sums: Array) -> Array:
        return sums


UNTRACKED = _Untracked()


class _Watched(Pass):
    """A pass whose step and samples `forward` of a module that is looked into does not read."""

    def __getattribute__(self, name: str) -> Any:
        record = recording.get()
        if name in ("step", "samples") and isinstance(record, Recorder):
            record.read(STEPS)
        return super().__getattribute__(name)


class Zeros:
    """The store of a parameter that is not drawn: its memory is there while it is used."""

    rotates = False

    def __init__(self, p: Parameter, dtype: np.dtype[Any]) -> None:
        self._p, self.dtype = p, dtype

    def value(self, i: int) -> Array:
        memory = np.zeros([self._p.shape[k] for k in self._p.layout], self.dtype)
        return memory.transpose(inverse(self._p.layout))

    def slot(self, i: int) -> Array:
        return self.value(i)

    def refresh(self, i: int, made: int) -> None:
        pass

    def written(self, i: int) -> None:
        pass


@contextmanager
def _borrowed(model: Module, dtype: Any) -> Iterator[None]:
    """Parameters are zeros of this type, and buffers are copies; then all is as before."""
    modules = list(dict.fromkeys(model.modules()))
    modes = [m.training for m in modules]
    parameters = [(p, p.store, p.index, p.has_grad) for p in model.parameters()]
    buffers = [(m, name, getattr(m, name)) for m in modules for name in m._buffers]
    try:
        for p, *_ in parameters:
            p.move(Zeros(p, np.dtype(dtype)), 0)
        for m, name, array in buffers:
            setattr(m, name, array.copy())
        yield
    finally:
        for p, store, index, has_grad in parameters:
            if store is None:
                p.discard()
            else:
                p.move(store, index)
                p.has_grad = has_grad
        for m, name, array in buffers:
            setattr(m, name, array)
        for m, mode in zip(modules, modes, strict=True):
            object.__setattr__(m, "training", mode)


def _settings(module: Module) -> dict[str, Any]:
    """The public attributes that are plain values."""
    return {name: v for name, v in vars(module).items() if name[0] != "_" and _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _variables(model: Module) -> tuple[list[Variable], dict[int, int]]:
    """The entries of the state dict, and the number of each tensor by its id."""
    found: dict[int, tuple[Any, list[str], tuple[int, ...]]] = {}
    for place, tensor in model.tensors():
        found.setdefault(id(tensor), (tensor, [], place.shape))[1].append(place.path)
    variables = [
        Variable(
            tuple(names),
            tuple(shape),
            str(tensor.dtype),
            isinstance(tensor, Parameter),
            isinstance(tensor, Parameter) and tensor.requires_grad,
        )
        for tensor, names, shape in found.values()
    ]
    return variables, {key: k for k, key in enumerate(found)}


# ---- what two passes have in common


def _merged(
    few: tuple[Found, Any],
    more: tuple[Found, Any],
    variables: Sequence[Variable],
    whole: Mapping[str, str],
) -> Graph:
    """One graph; raises ConflictError where the passes differ in more than lengths."""
    (a, arguments), (b, _) = few, more
    if _calls(a.nodes, "") != _calls(b.nodes, ""):
        raise ConflictError(_differing(a.nodes, b.nodes), DIFFERS)
    nodes = []
    for one, other in zip(a.nodes, b.nodes, strict=True):
        both = _common(one.arguments, other.arguments, one.within)
        nodes.append(one._replace(arguments=both))
    within = {e: node.within for node in a.nodes for e in node.outputs}
    pairs = list(zip(a.tensors, b.tensors, strict=True))
    for e, (x, y) in enumerate(pairs):
        if not _is_one(x, y) and within.get(e, "") not in whole:
            raise ConflictError(within.get(e, ""), DIFFERS)
    edges = [_edge(x, y) for x, y in pairs]
    inputs = tuple(v.edge for v in leaves(arguments) if type(v) is Value)
    outputs = tuple(v.edge for v in leaves(a.outputs) if type(v) is Value)
    order = tuple(dict.fromkeys(a.order))
    return named(
        Graph(
            tuple(nodes),
            tuple(edges),
            tuple(variables),
            inputs,
            arguments,
            outputs,
            order,
            tuple(_common_calls(a.calls, b.calls)),
        )
    )


def _common_calls(a: Sequence[Call], b: Sequence[Call]) -> Iterator[Call]:
    others = {(call.path, call.nodes): call for call in b}
    for call in a:
        other = others.get((call.path, call.nodes))
        if other is not None:
            with suppress(ConflictError):
                arguments = _common(call.arguments, other.arguments, call.path)
                yield call._replace(arguments=arguments)


def _calls(nodes: Sequence[Node], path: str) -> list[tuple[Any, ...]]:
    """What the module of a path and those below it call."""
    below = f"{path}." if path else ""
    inside = (n for n in nodes if n.within == path or n.within.startswith(below))
    return [(node.name, node.layer, node.within) for node in inside]


def _differing(a: Sequence[Node], b: Sequence[Node]) -> str:
    """The path of the innermost module that does not make the same calls in both."""
    words = [node.within.split(".") for node in (*a, *b)]
    paths = {".".join(row[:n]) for row in words for n in range(len(row) + 1)}
    differ = (path for path in paths if _calls(a, path) != _calls(b, path))
    return max(differ, key=lambda path: (path.count(".") + bool(path), path))


def _common(a: Any, b: Any, within: str) -> Any:
    """What stands for both; whole numbers in the ratio of the samples become Samples."""
    if isinstance(a, Value | Use):
        if a == b:
            return a
    elif type(a) is not type(b):
        pass
    elif isinstance(a, tuple | list):
        if len(a) == len(b):
            return type(a)(_common(x, y, within) for x, y in zip(a, b, strict=True))
    elif isinstance(a, Mapping):
        if a.keys() == b.keys():
            return {key: _common(a[key], b[key], within) for key in a}
    elif a is b or (not backend.is_array(a) and a == b):
        return a
    elif isinstance(a, int) and a * MORE == b * FEW:
        return Samples(a // FEW)
    raise ConflictError(within, DIFFERS)


def _is_one(few: Tensor, more: Tensor) -> bool:
    """Whether they are one tensor for two numbers of samples."""
    lengths = zip(few.shape, more.shape, strict=False)
    fits = all(n == m or n * MORE == m * FEW for n, m in lengths)
    return few.dtype == more.dtype and few.ndim == more.ndim and fits


def _edge(few: Tensor, more: Tensor) -> Edge:
    """An edge, whose axes have no names yet."""
    y = few.operand
    axes = tuple(
        Axis("", n, False) if n == m else Axis("", n // FEW, True)
        for n, m in zip(few.shape, more.shape, strict=False)
    )
    return Edge(axes, y.dtype.name, order_of(y), few.requires_grad or more.requires_grad)


def order_of(array: Array) -> tuple[int, ...]:
    """The axes of an array in the order in which they lie in memory, that of long strides first."""
    return tuple(sorted(range(array.ndim), key=lambda k: (-array.strides[k], k)))
