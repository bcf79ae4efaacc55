"""Graph: what a model computes, as a value; `nnmpi.nn.tracing` records it.

    x ──► 0.q  Linear ──┐                                       nodes   layers, and ops
    │                   ├─► multiply ──► 0.o  Linear ──► add ──► y      between them
    ├──► 0.k  Linear ───┘                                 ▲     edges   tensors
    └─────────────────────────────────────────────────────┘

Fusion, cuts and sharding are functions of it: none of them runs the model.
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
    """Stands for a tensor in arguments and results: the number of its edge."""

    edge: int


@dataclass(frozen=True)
class VariableRef:
    """Stands for a parameter or a buffer in arguments: its number in `Graph.variables`."""

    variable: int


@dataclass(frozen=True)
class SampleCount:
    """Stands for so many times the number of samples; in a shape, for instance."""

    times: int


class Axis(NamedTuple):
    """An axis of a tensor; its length is `size`, times the number of samples if `of_samples`.

    Names are in `axis_names.py`.
    """

    size: int
    of_samples: bool = False
    name: str = ""


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
        """The first name, in the whole model."""
        return self.names[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and named arguments, in which tensors are Value and Use."""


@dataclass(frozen=True)
class Node:
    """A layer, a module that is taken whole, or an op between them.

    name       the path of the module, or the name of the op
    result     what it returns, in which tensors are Value
    within     the path of the module whose forward calls it
    variables  of the module, or those that an op takes: numbers, in the order of their first use
    layer      the class of the module, Module if it has a forward of its own; None of an op
    settings   of the module: its public attributes that are numbers, text, or tuples of these
    note       why a module with children is taken whole
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
        """The name of the class of the module; of an op, its name."""
        return self.name if self.layer is None else self.layer.__name__

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The edges among its arguments, each once, in their order."""
        return edges_of(self.arguments)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The edges of its results."""
        return edges_of(self.result)


class Call(NamedTuple):
    """A module or an op, as it is called: the nodes that it runs; path and class of a module."""

    nodes: range
    path: str | None
    op: Callable[..., Any] | None
    arguments: Arguments
    result: Any
    layer: type[Module] | None = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The edges among its arguments."""
        return edges_of(self.arguments)

    @property
    def is_plain(self) -> bool:
        """Whether it is a module that takes one tensor and returns one."""
        args, named = self.arguments
        takes_one = len(args) == 1 and type(args[0]) is TensorRef and not named
        return self.op is None and takes_one and type(self.result) is TensorRef


class Graph(NamedTuple):
    """Nodes in the order in which they run.

    arguments  what the model is called with
    outputs    the edges that it returns
    order      trained parameters in the order of their use: gradients become final in the reverse
    calls      of modules with several nodes, but for Sequentials that only run their layers
    shapes     the edges whose shape a `forward` reads, so that it has to be the whole one
    fused      neighbours that run as one op
    source     how the model is run again, for what ranks do on paper
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
    source: Any = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The edges that the model is called with."""
        return edges_of(self.arguments)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why modules with children are taken whole."""
        return tuple(f"{n.name or 'the model'}: {n.note}" for n in self.nodes if n.note)

    def users(self) -> dict[int, list[int]]:
        """The nodes that take each edge; the number of nodes stands for the end of the model."""
        users: dict[int, list[int]] = {e: [] for e in range(len(self.edges))}
        for k, node in enumerate(self.nodes):
            for e in node.inputs:
                users[e].append(k)
        for e in self.outputs:
            users[e].append(len(self.nodes))
        return users

    def crossing(self, k: int) -> tuple[int, ...]:
        """The edges that nodes from k on need of the nodes before, or of the inputs."""
        made = {*self.inputs, *(e for node in self.nodes[:k] for e in node.outputs)}
        needed = [e for node in self.nodes[k:] for e in node.inputs]
        return tuple(e for e in dict.fromkeys([*needed, *self.outputs]) if e in made)


def mapped(leaf: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Nested tuples, lists and dicts with `leaf(part)` in the place of each part.

    If `others`, which are nested as `tree` is, are given, it is `leaf(part, *parts of these)`.
    """
    if isinstance(tree, TensorRef | VariableRef | SampleCount):  # first: asked in every step
        return leaf(tree, *others)
    if isinstance(tree, tuple | list):
        parts = [mapped(leaf, *inside) for inside in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        return {key: mapped(leaf, tree[key], *(other[key] for other in others)) for key in tree}
    return leaf(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts."""
    flat: list[Any] = []
    mapped(flat.append, tree)
    return flat


def edges_of(tree: Any) -> tuple[int, ...]:
    """The edges in nested tuples, lists and dicts, each once."""
    return tuple(dict.fromkeys(v.edge for v in leaves(tree) if type(v) is TensorRef))


def variables_of(model: Module) -> tuple[list[Variable], dict[int, int]]:
    """The entries of the state dict, and the number of each tensor by its id."""
    by_id: dict[int, Variable] = {}
    for place, tensor in model.tensors():
        other = by_id.get(id(tensor))
        by_id[id(tensor)] = Variable(
            (*(other.names if other else ()), place.path),
            place.shape,
            str(tensor.dtype),
            isinstance(tensor, Parameter),
            isinstance(tensor, Parameter) and tensor.requires_grad,
        )
    return list(by_id.values()), {key: k for k, key in enumerate(by_id)}
