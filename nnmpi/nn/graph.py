"""Graph: what a model computes, as a value; `nnmpi.nn.tracing` records it.

    x ──► 0.q  Linear ──┐                                       nodes   layers, and ops
    │                   ├─► multiply ──► 0.o  Linear ──► add ──► y      between them
    ├──► 0.k  Linear ───┘                                 ▲     edges   tensors
    └─────────────────────────────────────────────────────┘

Fusion, cuts, sharding, memory and traffic are functions of it: none of them runs the model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class Samples(NamedTuple):
    """So many times the number of samples; in a shape, for instance."""

    times: int


class Axis(NamedTuple):
    """An axis of a tensor; its length is `size`, times the number of samples if `of_samples`."""

    name: str  # batch, length, rows, columns, channels, features, heads, classes; or "" if unknown
    size: int
    of_samples: bool = False


class Edge(NamedTuple):
    """A tensor between nodes.

    order          of its axes in memory
    requires_grad  whether a parameter that is trained has a part in it
    memory         the edge whose memory it lies in: itself, or one that it is a view of
    """

    axes: tuple[Axis, ...]
    dtype: str
    order: tuple[int, ...]
    requires_grad: bool
    memory: int

    @property
    def of_samples(self) -> bool:
        """Whether it has a number of rows for each sample, along the first axis."""
        return bool(self.axes) and self.axes[0].of_samples

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape for one sample, without the axis of the samples."""
        return tuple(axis.size for axis in self.axes[1:])

    @property
    def numbers(self) -> int:
        """How many numbers it holds for a sample; of a tensor that has no samples, in all."""
        return prod(axis.size for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """The bytes of these."""
        return self.numbers * np.dtype(self.dtype).itemsize

    def shape(self, samples: int) -> tuple[int, ...]:
        """The shape for so many samples."""
        return tuple(a.size * (samples if a.of_samples else 1) for a in self.axes)


class Variable(NamedTuple):
    """A parameter or a buffer of the model: an entry of the state dict.

    names       all of its names; the first one is its path
    is_trained  whether it is a parameter that requires a gradient
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    is_parameter: bool
    is_trained: bool

    @property
    def path(self) -> str:
        """Its first name in the whole model."""
        return self.names[0]

    @property
    def size(self) -> int:
        """Its number of elements."""
        return prod(self.shape)


class Value(NamedTuple):
    """An argument that is a tensor of the graph: the number of its edge."""

    edge: int


class Use(NamedTuple):
    """An argument that is a parameter or a buffer: its number in `Graph.variables`."""

    variable: int


class Node(NamedTuple):
    """A layer, a module that is taken whole, or an op between them.

    name       the path of the module, or the name of the op
    layer      the class of the module, Module if it has a forward of its own; None of an op
    settings   of the module: its public attributes that are numbers, text, or tuples of these
    arguments  positional and named ones, in which tensors are Value and Use
    outputs    the edges of its results
    result     what it returns, in which tensors are Value
    within     the path of the module whose forward calls it
    variables  of the module, or those that an op takes: numbers, in the order of their first use
    note       why a module with children is taken whole
    """

    name: str
    layer: type[Module] | None
    settings: Mapping[str, Any]
    op: Callable[..., Any] | None
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    outputs: tuple[int, ...]
    result: Any
    within: str
    variables: tuple[int, ...]
    note: str = ""

    @property
    def kind(self) -> str:
        """The name of the class of the module; of an op, its name."""
        return self.name if self.layer is None else self.layer.__name__

    @property
    def inputs(self) -> tuple[int, ...]:
        """The edges among its arguments, each once, in their order."""
        return tuple(dict.fromkeys(v.edge for v in leaves(self.arguments) if type(v) is Value))


class Kept(NamedTuple):
    """Bytes that nodes first to stop - 1 keep for the backward pass, besides their edges.

    They are so many, and so many for each sample. Several nodes are layers that run as one op.
    """

    first: int
    stop: int
    constant: float
    per_sample: float


class Call(NamedTuple):
    """A module that is looked into, as it was called: its path, and the nodes that it ran."""

    path: str
    nodes: range
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    result: Any


class Graph(NamedTuple):
    """Nodes in the order in which they run.

    inputs     what the model is called with, in which tensors are Value
    outputs    the edges that it returns
    order      trained parameters in the order of their use: gradients become final in the reverse
    calls      of modules with several nodes, but for Sequentials that only run their layers
    sequences  the paths of the Sequentials, which may run some of their layers as one op
    shapes     the edges whose shape a `forward` reads, so that it has to be the whole one
    kept       of each node, and of neighbours that run as one op
    loss       what the loss keeps besides the outputs
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    variables: tuple[Variable, ...]
    inputs: tuple[int, ...]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    outputs: tuple[int, ...]
    order: tuple[int, ...]
    calls: tuple[Call, ...]
    sequences: frozenset[str]
    shapes: frozenset[int]
    kept: tuple[Kept, ...]
    loss: Kept

    @property
    def notes(self) -> tuple[str, ...]:
        """Why modules with children are taken whole."""
        return tuple(f"{n.name or 'the model'}: {n.note}" for n in self.nodes if n.note)

    def users(self) -> dict[int, list[int]]:
        """The nodes that take each edge; the number of nodes stands for the end of the model."""
        found: dict[int, list[int]] = {e: [] for e in range(len(self.edges))}
        for k, node in enumerate(self.nodes):
            for e in node.inputs:
                found[e].append(k)
        for e in self.outputs:
            found[e].append(len(self.nodes))
        return found

    def crossing(self, k: int) -> tuple[int, ...]:
        """The edges that nodes from k on need of the nodes before, or of the inputs."""
        before = {*self.inputs, *(e for node in self.nodes[:k] for e in node.outputs)}
        needed = [e for node in self.nodes[k:] for e in node.inputs]
        return tuple(e for e in dict.fromkeys([*needed, *self.outputs]) if e in before)

    def trained(self, nodes: Sequence[int] | range) -> list[int]:
        """The trained parameters of these nodes: those in no use first, then in order of use."""
        own = dict.fromkeys(v for k in nodes for v in self.nodes[k].variables)
        there = [v for v in sorted(own) if self.variables[v].is_trained]
        used = [v for v in self.order if v in own]
        return [*(v for v in there if v not in {*used}), *used]


def leaves(tree: Any) -> Iterator[Any]:
    """What nested tuples, lists and dicts hold; Value, Use and Samples are leaves."""
    if isinstance(tree, Value | Use | Samples):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from leaves(part)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from leaves(part)
    else:
        yield tree


def of_kind(tree: Any, parts: Iterable[Any]) -> Any:
    """A tuple, a named one or a list, as `tree` is one, of other parts."""
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts with `leaf(part)` in the place of each part."""
    if isinstance(tree, Value | Use | Samples):
        return leaf(tree)
    if isinstance(tree, tuple | list):
        return of_kind(tree, (rebuilt(part, leaf) for part in tree))
    if isinstance(tree, Mapping):
        return {key: rebuilt(part, leaf) for key, part in tree.items()}
    return leaf(tree)


def variables_of(model: Module) -> tuple[list[Variable], dict[int, int]]:
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
