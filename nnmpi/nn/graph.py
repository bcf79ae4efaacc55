"""Graph: what a model computes, as a value; `nnmpi.nn.tracing` records it.

    x ──► 0.q  Linear ──┐                                       nodes   layers, and ops
    │                   ├─► multiply ──► 0.o  Linear ──► add ──► y      between them
    ├──► 0.k  Linear ───┘                                 ▲     edges   tensors
    └─────────────────────────────────────────────────────┘

Fusion, pipeline cuts and sharding are functions of the graph: none of them runs the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


@dataclass(frozen=True)
class TensorRef:
    """Stands in a graph for a tensor in arguments and results: the number of its edge."""

    edge: int


@dataclass(frozen=True)
class VariableRef:
    """Stands in a graph for a parameter or buffer in arguments: its number in `variables`."""

    variable: int


@dataclass(frozen=True)
class SampleCount:
    """Stands in a graph for an integer that is `times` the number of samples."""

    times: int


class Axis(NamedTuple):
    """An axis of a tensor in a graph, of length `size`, times the number of samples if
    `of_samples`; its name is one of `axis_names.py`."""

    size: int
    of_samples: bool = False
    name: str = ""


class Edge(NamedTuple):
    """A tensor in a graph: an input of the model or a result of a node, which other nodes take.

    order          the order of its axes in memory
    requires_grad  whether it depends on a parameter that is trained
    memory         the edge that owns its memory: itself, or the edge that it is a view of
    """

    axes: tuple[Axis, ...]
    dtype: str
    order: tuple[int, ...]
    requires_grad: bool
    memory: int

    @property
    def of_samples(self) -> bool:
        """True if the length of the first axis grows with the number of samples."""
        return bool(self.axes) and self.axes[0].of_samples

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of the tensor for one sample, without the axis that counts samples."""
        return tuple(axis.size for axis in self.axes[1:])

    @property
    def elements(self) -> int:
        """The number of elements for one sample; all elements if no axis counts samples."""
        return prod(axis.size for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """The size in bytes of the elements for one sample."""
        return self.elements * np.dtype(self.dtype).itemsize

    def shape(self, samples: int) -> tuple[int, ...]:
        """Returns the shape of the tensor for this number of samples."""
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
        """The name of the parameter or buffer in the whole model, the first of several."""
        return self.names[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments, with TensorRef and VariableRef in place of tensors."""


@dataclass(frozen=True)
class Node:
    """A node of a graph: a layer, a module that is recorded as a whole, or an op between layers.

    name       of the module, or of the op
    result     the returned value, with TensorRef in place of tensors
    within     the path of the module whose forward calls this node
    variables  the numbers of its parameters and buffers, in the order of their first use
    layer      the class of the module; Module if the instance has its own forward; None for an op
    settings   the public attributes of the module that are numbers, text, or tuples of these
    note       why a module with children is recorded as one node; "" for others
    """

    name: str
    arguments: Arguments
    result: Any
    within: str
    variables: tuple[int, ...]
    layer: type[Module] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    op: Callable[..., Any] | None = None
    note: str = ""

    @property
    def kind(self) -> str:
        """The class name of the module, or the name of the op."""
        return self.name if self.layer is None else self.layer.__name__

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the edges (tensors) among the arguments, each once, in order."""
        return edges_of(self.arguments)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The numbers of the edges (tensors) among the results."""
        return edges_of(self.result)


class Call(NamedTuple):
    """A recorded call of a module, of class `layer`, or of an op; `nodes` are those it runs."""

    nodes: range
    path: str | None
    op: Callable[..., Any] | None
    arguments: Arguments
    result: Any
    layer: type[Module] | None = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the edges (tensors) among the arguments."""
        return edges_of(self.arguments)

    @property
    def is_plain(self) -> bool:
        """True if a module, not an op, is called, with one tensor as argument and one as result."""
        args, named = self.arguments
        takes_one = len(args) == 1 and type(args[0]) is TensorRef and not named
        return self.op is None and takes_one and type(self.result) is TensorRef


class Graph(NamedTuple):
    """The structure of a model: nodes in the order in which they run, edges, and variables.

    arguments  the arguments that the model is called with
    outputs    the numbers of the edges that it returns
    order      trained parameters in the order of their use: gradients become final in reverse order
    calls      calls of modules with several nodes, except Sequentials that only run their layers
    shapes     the edges whose shape a `forward` reads, which therefore cannot be sharded
    fused      ranges of consecutive nodes that run as one op
    again      ranges of the nodes that `checkpoint` runs again in backward passes
    source     functions that make and run the model again (`ModelSource`)
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    variables: tuple[Variable, ...]
    arguments: Arguments
    outputs: tuple[int, ...]
    order: tuple[int, ...]
    calls: tuple[Call, ...]
    shapes: frozenset[int]
    fused: tuple[range, ...]
    again: tuple[range, ...] = ()
    source: Any = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the edges (tensors) that the model is called with."""
        return edges_of(self.arguments)

    @property
    def notes(self) -> tuple[str, ...]:
        """The reasons why modules with children are recorded as single nodes, as text."""
        return tuple(f"{n.name or 'the model'}: {n.note}" for n in self.nodes if n.note)

    @property
    def may_differ(self) -> bool:
        """True if different samples may use different parameters: if a module with trained
        parameters is one node, what its `forward` does with each sample is unknown."""
        noted = (v for node in self.nodes if node.note for v in node.variables)
        return any(self.variables[v].is_trained for v in noted)

    def users(self) -> dict[int, list[int]]:
        """Returns, for each edge, the numbers of the nodes that take it; an output of the model is
        also taken by the caller, whose number is the number of nodes."""
        users: dict[int, list[int]] = {e: [] for e in range(len(self.edges))}
        for k, node in enumerate(self.nodes):
            for e in node.inputs:
                users[e].append(k)
        for e in self.outputs:
            users[e].append(len(self.nodes))
        return users

    def crossing(self, k: int) -> tuple[int, ...]:
        """Returns the edges (tensors) that exist before node k and are needed by it or by later
        nodes: those that a pipeline stage which begins with node k receives."""
        return self.crossings()[k]

    def crossings(self) -> list[tuple[int, ...]]:
        """Returns `crossing(k)` of each node k, and at the end the outputs of the model."""
        needed = [tuple(dict.fromkeys(self.outputs))]
        for node in reversed(self.nodes):
            later = (e for e in needed[-1] if e not in node.outputs)
            needed.append(tuple(dict.fromkeys((*node.inputs, *later))))
        return needed[::-1]

    @property
    def cache(self) -> dict[Any, Any]:
        """Results of functions that depend on this graph, by function and arguments."""
        cache: dict[Any, Any] = self.source.cache
        return cache


def mapped(leaf: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Returns a copy of nested tuples, lists and dicts in which each leaf x is replaced by leaf(x,
    *xs), where xs are the leaves of `others` at the same position."""
    if isinstance(tree, TensorRef | VariableRef | SampleCount):  # first: asked in every step
        return leaf(tree, *others)
    if isinstance(tree, tuple | list):
        parts = [mapped(leaf, *inside) for inside in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        return {key: mapped(leaf, tree[key], *(other[key] for other in others)) for key in tree}
    return leaf(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """Returns the leaves of `tree`: what is in it and no tuple, list or dict."""
    flat: list[Any] = []
    mapped(flat.append, tree)
    return flat


def edges_of(tree: Any) -> tuple[int, ...]:
    """Returns the numbers of the edges that TensorRefs in a tree refer to, each once."""
    return tuple(dict.fromkeys(v.edge for v in leaves(tree) if type(v) is TensorRef))


def variables_of(model: Module) -> tuple[list[Variable], dict[int, int]]:
    """Returns the entries of the state dict as Variables, and their numbers by id."""
    by_id: dict[int, Variable] = {}
    for place, tensor in model.tensors():
        other = by_id.get(id(tensor))
        by_id[id(tensor)] = Variable(
            (*(other.names if other else ()), place.path),
            place.shape,
            str(tensor.dtype),
            isinstance(tensor, Parameter),
            isinstance(tensor, Parameter) and tensor._requires_grad,
        )
    return list(by_id.values()), {key: k for k, key in enumerate(by_id)}
