"""GraphRecorder: records layers and ops of a forward pass as nodes of a Graph."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nnmpi.arrays import backend, meta
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import Storage, recording, tick
from nnmpi.nn.fusion import groups
from nnmpi.nn.graph import (
    Arguments,
    Axis,
    Call,
    Edge,
    Node,
    TensorRef,
    VariableRef,
    mapped,
    variables_of,
)
from nnmpi.nn.module import Module
from nnmpi.nn.sequential import only_runs_layers

STEPS = "its forward depends on the step or on the indices of the samples"
READS = "its forward reads elements of a tensor"
MAKES = "its forward uses a tensor or an array that is not an attribute of a module"
WRITES = "its forward writes to a tensor in place"
USES = "its forward uses "  # and the name of a context, such as no_grad
DETACHES = "its forward detaches a tensor"
CHANGES = "its forward changes attributes"
HOLDS = "it has a buffer of its own"
HOOKS = "it has hooks"


class TracedTensor(Tensor):
    """A tensor whose elements a traced `forward` must not read: it notifies the recorder when its
    elements or its shape are read, and when it is written to."""

    __slots__ = ()

    @property
    def data(self) -> Array:
        """The array of the tensor. When it is read, the module whose `forward` reads it is recorded
        as a single node, since the graph cannot express what depends on the elements."""
        note_untraceable(READS)
        return self._array

    @data.setter
    def data(self, value: Array) -> None:
        self._array = value

    @property
    def shape(self) -> tuple[int, ...]:
        record = recording.get()
        if isinstance(record, GraphRecorder):
            record.note_shape_read(self)
        return super().shape

    def detach(self) -> Tensor:
        note_untraceable(DETACHES)
        return super().detach()

    @property
    def is_replaceable(self) -> bool:
        return True

    def before_write(self) -> Tensor:
        return self

    def become(self, y: Tensor) -> Tensor:
        record = recording.get()
        if isinstance(record, GraphRecorder):
            record.replace_edge(self, y)
        sharing = self.storage.sharing
        if sharing is not None:  # the others are older, which `note_older` hears of
            sharing.renewed, sharing.outdated, self.storage = tick(), None, Storage()
        return super().become(y)

    def mark_written(self) -> None:
        note_untraceable(WRITES)
        super().mark_written()


class TracedBuffer(Tensor):
    """A buffer of a traced module, which notifies the recorder when it is written to."""

    __slots__ = ()

    @property
    def is_replaceable(self) -> bool:
        return True

    def mark_written(self) -> None:
        note_untraceable(WRITES)
        super().mark_written()


TracedTensor.__name__ = TracedBuffer.__name__ = Tensor.__name__  # error messages show it


class ConflictError(Exception):
    """Raised if the module at `path` can only be recorded as a single node; `note` says why."""

    def __init__(self, path: str, note: str) -> None:
        self.path, self.note = path, note


class GraphRecorder:
    """Records the layers and ops of one forward pass of a model as nodes of a graph: the structure
    of the model, and not the work of a rank, which `nn/record.py` records as calls of kernels.

    `notes` has the modules to record as single nodes, by path, with the reason; on_growth(held) is
    called whenever a node is added.

    edges  the tensors, with the lengths for the number of samples; empty until `free` is called
    fused  ranges of consecutive nodes that run as one op
    again  ranges of nodes that run again in the backward pass, by `checkpoint`
    held   the bytes of all tensors recorded so far
    """

    def __init__(
        self, model: Module, notes: Mapping[str, str], on_growth: Callable[[int], object]
    ) -> None:
        self._notes, self._on_growth, self.held = notes, on_growth, 0
        # reversed, so that a module with several names has its first one
        self._paths = {id(m): path for path, m in reversed([*model.named_modules()])}
        self.variables, self._numbers = variables_of(model)
        self._known = {id(value): value for m in model.modules() for value in vars(m).values()}
        self.nodes, self.edges, self.order = list[Node](), list[Edge](), list[int]()
        self.calls, self.shapes, self.fused = list[Call](), set[int](), list[range]()
        self.again = list[range]()
        self._tensors, self._edges = list[Tensor](), dict[int, int]()
        self._replaced = list[Tensor]()  # kept, so that no other tensor gets their ids
        self._memory: dict[int, Array] = {}  # that edges lie in, by id
        self._within: list[str] = []  # the modules being traced into, the innermost last
        self._unit: dict[int, None] | None = None  # used by the module recorded as one node

    def run(self, model: Module, inputs: Arguments) -> None:
        """Calls the model, and records its arguments, all layers and ops, and its outputs."""
        args, named = mapped(lambda x: self._edge(x) if isinstance(x, Tensor) else x, inputs)
        self.arguments = self._templates((args, named))
        self.returned = model(*args, **named)
        self.outputs = self._templates(self.returned)

    def free(self) -> None:
        """Fills `edges` with the shapes and types of all tensors, and frees their memory."""
        owners: dict[int, int] = {}  # by memory: the first edge in it
        for e, t in enumerate(self._tensors):
            axes, order = tuple(map(Axis, t._array.shape)), order_of(t._array)
            owner = owners.setdefault(id(meta.owner(t._array)), e)
            self.edges.append(Edge(axes, t.dtype.name, order, t._requires_grad, owner))
        self._tensors.clear()
        self._edges.clear()
        self._replaced.clear()
        self._memory.clear()
        self.returned = None

    def refuse(self, reason: str) -> None:
        """Raises ConflictError: the innermost traced module becomes a single node."""
        if self._unit is None and self._within:
            raise ConflictError(self._within[-1], reason)

    def enter(self, context: str) -> None:
        """Raises ConflictError in a context such as no_grad: the module becomes a single node."""
        self.refuse(USES + context)

    def run_again(self, function: Callable[[], Any]) -> Any:
        """Runs the function given to `checkpoint`, and records that its nodes run again."""
        start = len(self.nodes)
        result = function()
        self.again.append(range(start, len(self.nodes)))
        return result

    def replace_edge(self, t: Tensor, y: Tensor) -> None:
        """Called after an in-place op on t, recorded as an op with the new result y: from now on a
        use of t counts as a use of y.

        Raises ConflictError within a module that is recorded as a single node: then the module that
        called it has to be a single node as well.
        """
        if self._unit is not None and self._within:
            raise ConflictError(self._within[-1], WRITES)
        self._tensors[self._edges[id(t)]] = Tensor(t._array, t._requires_grad)
        self._replaced.append(t)
        if self._unit is None:
            self._edges[id(t)] = self._edges[id(y)]

    def note_older(self, t: Tensor) -> None:
        """Called when a `forward` uses t after an in-place op on another tensor with the same
        memory: no edge has its new values. Raises ConflictError: the module becomes one node."""
        if isinstance(t, TracedTensor) and self._within:
            raise ConflictError(self._within[-1], WRITES)

    def note_shape_read(self, tensor: Tensor) -> None:
        """Records that a `forward` reads the shape of a tensor, which then cannot be sharded."""
        if self._unit is None and id(tensor) in self._edges:
            self.shapes.add(self._edges[id(tensor)])

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Tensor
    ) -> None:
        """Records an op, with its arguments and result, as a node."""
        used = [self._numbers[id(a)] for a in args if id(a) in self._numbers]
        if y._requires_grad:
            self.order.extend(v for v in used if self.variables[v].is_trained)
        if self._unit is not None:
            self._unit.update(dict.fromkeys(used))
            for a in args:
                if isinstance(a, Tensor) and a.node is None and not isinstance(a, TracedTensor):
                    self._refuse_outside(a)
            return
        arguments = self._templates((tuple(args), dict(options)))
        name = getattr(op, "__name__", "op")
        self._add(Node(name, arguments, None, self._within[-1], tuple(used), op=op), y)

    def forward(self, module: Module, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Runs and records the `forward` of a module, in place of each one in a traced pass."""
        in_sequence = only_runs_layers(module) and _is_of_class(module, forward)
        path = self._paths.get(id(module))  # None: made inside another forward
        if path is None or self._unit is not None or (in_sequence and not module._modules):
            return forward(*args, **named)
        if not module._modules or module._buffers or module._hooks or path in self._notes:
            return self._layer(module, path, forward, args, named)
        self._within.append(path)
        if in_sequence:  # its own forward would fuse some of them
            result = self._in_sequence([*module._modules.values()], *args, **named)
        else:
            start, attributes = len(self.nodes), _plain(module)
            edges = [self._edges.get(id(a)) for a in (*args, *named.values())]
            result = forward(*args, **named)
            # the next pass would depend on it, and a graph has no place for it
            if attributes | _plain(module) != attributes:
                self.refuse(CHANGES)
            returned = self._templates(result)  # raises if forward has made the array
            if edges != [self._edges.get(id(a)) for a in (*args, *named.values())]:
                self._within.pop()
                self.refuse(WRITES)
                self._within.append(path)
            nodes = range(start, len(self.nodes))
            with suppress(ConflictError, ValueError):  # unless arguments are outside the graph
                given = self._templates((args, named))
                kind = type(module) if _is_of_class(module, forward) else Module
                call = Call(nodes, path, None, given, returned, kind)
                self.calls += [call] if nodes else []
        self._within.pop()
        return result

    def _in_sequence(self, layers: list[Module], *args: Any, **named: Any) -> Any:
        """Runs a Sequential's layers one by one, and records which would run as one fused op."""
        for group in groups(layers):
            for layer in group:
                args, named = (layer(*args, **named),), {}
            stop = len(self.nodes)
            self.fused += [range(stop - len(group), stop)] if len(group) > 1 else []
        return args[0]

    def _layer(
        self,
        module: Module,
        path: str,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Runs a module, and records the whole call as one node."""
        arguments = self._templates((args, named))
        # while it is set, ops make no nodes, and note the variables that they use
        self._unit = dict.fromkeys(
            self._numbers[id(t)] for _, t in module.tensors() if id(t) in self._numbers
        )
        result = forward(*args, **named)
        used, self._unit = tuple(self._unit), None
        within = self._within[-1] if self._within else ""
        kind = type(module) if _is_of_class(module, forward) else Module
        settings = {name: value for name, value in _plain(module).items() if name[0] != "_"}
        reason = HOOKS if module._hooks else HOLDS if module._modules and module._buffers else ""
        note = self._notes.get(path, reason)
        node = Node(path, arguments, None, within, used, kind, settings, None, note)
        return self._add(node, result)

    def _add(self, node: Node, result: Any) -> Any:
        """Adds a node, and returns its result, of which each tensor becomes an edge."""
        returned = mapped(lambda t: self._edge(t) if isinstance(t, Tensor) else t, result)
        self.nodes.append(replace(node, result=self._templates(returned)))
        self._on_growth(self.held)
        return returned

    def _edge(self, t: Tensor) -> Tensor:
        """Registers a tensor as a new edge, or a copy if it is one already; returns that."""
        if id(t) in self._edges or type(t) is not Tensor:  # known, a variable or a Lookup
            t = Tensor(t._array, t._requires_grad)
        t.__class__ = TracedTensor
        self._edges[id(t)] = len(self._tensors)
        self._tensors.append(t)
        memory = meta.owner(t._array)
        if id(memory) not in self._memory:
            self._memory[id(memory)] = memory
            self.held += int(memory.nbytes)
        return t

    def _templates(self, tree: Any) -> Any:
        """Returns a tree with TensorRef and VariableRef in place of tensors and variables."""
        return mapped(self._template, tree)

    def _template(self, value: Any) -> Any:
        if id(value) in self._edges:
            return TensorRef(self._edges[id(value)])
        if id(value) in self._numbers:
            return VariableRef(self._numbers[id(value)])
        if isinstance(value, Tensor):
            self._refuse_outside(value)
        is_array = isinstance(value, Tensor) or backend.is_array(value)
        if is_array and id(value) not in self._known:
            self.refuse(MAKES)
        return value

    def _refuse_outside(self, t: Tensor) -> None:
        """Raises ValueError for a tensor with a gradient that is no parameter of the model."""
        if t._requires_grad and id(t) not in self._numbers:
            raise ValueError(
                f"the model uses a tensor of shape {t.shape} that requires a gradient but is not "
                "one of its parameters, so it would be neither trained nor saved: make it an "
                "attribute of a module, as nn.Parameter"
            )


def note_untraceable(reason: str) -> None:
    """Tells the recorder that a traced `forward` does what a graph cannot express."""
    record = recording.get()
    if isinstance(record, GraphRecorder):
        record.refuse(reason)


def _is_of_class(module: Module, forward: Callable[..., Any]) -> bool:
    """True if `forward` is defined by the class, and was not set on the instance."""
    return getattr(forward, "__func__", None) is type(module).forward


def _plain(module: Module) -> dict[str, Any]:
    """Returns the attributes of a module that are numbers, text, None, or tuples of these."""
    return {name: v for name, v in vars(module).items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def order_of(array: Array) -> tuple[int, ...]:
    """Returns the axes of an array in their order in memory, the longest stride first."""
    return tuple(sorted(range(array.ndim), key=lambda k: (-array.strides[k], k)))
