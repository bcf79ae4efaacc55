"""merged: one graph from what passes with different numbers of samples have found."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.backend import Array
from nnmpi.nn.dimensions import named
from nnmpi.nn.graph import (
    Axis,
    Call,
    Edge,
    Graph,
    Kept,
    Node,
    Samples,
    Use,
    Value,
    Variable,
    leaves,
    of_kind,
)
from nnmpi.nn.graph_recorder import ConflictError, Found
from nnmpi.nn.kept import memory_of

FEW, MORE, MOST = 2, 3, 6
"""The samples of the passes."""

DIFFERS = "its forward does not do the same for any number of samples, in training and evaluation"


class Passed(NamedTuple):
    """What a pass has found, what the model was called with, and its variables."""

    found: Found
    arguments: Any
    variables: list[Variable]


def merged(few: Passed, more: Passed, most: Passed, whole: Mapping[str, str]) -> Graph:
    """One graph; raises ConflictError where the passes differ in more than lengths.

    `whole` are the modules that are taken whole already.
    """
    a, b, arguments = few.found, more.found, few.arguments
    if _calls(a.nodes, "") != _calls(b.nodes, ""):
        raise ConflictError(_differing(a.nodes, b.nodes), DIFFERS)
    nodes = []
    for one, other in zip(a.nodes, b.nodes, strict=True):
        both = _common(one.arguments, other.arguments, one.within)
        nodes.append(one._replace(arguments=both))
    inputs = tuple(v.edge for v in leaves(arguments) if type(v) is Value)
    outputs = tuple(v.edge for v in leaves(a.outputs) if type(v) is Value)
    memory = tuple(_affine(x, y) for x, y in zip(b.kept, most.found.kept, strict=True))
    return named(
        Graph(
            tuple(nodes),
            tuple(_edges(a, b, whole)),
            tuple(few.variables),
            inputs,
            arguments,
            outputs,
            tuple(dict.fromkeys(a.order)),
            tuple(_common_calls(a.calls, b.calls)),
            frozenset(a.sequences),
            frozenset(a.shapes | b.shapes),
            memory,
            _affine(Kept(0, 0, 0, b.loss), Kept(0, 0, 0, most.found.loss)),
        )
    )


def _edges(a: Found, b: Found, whole: Mapping[str, str]) -> Iterator[Edge]:
    within = {e: node.within for node in a.nodes for e in node.outputs}
    owners: dict[int, int] = {}
    for e, (x, y) in enumerate(zip(a.tensors, b.tensors, strict=True)):
        if not _is_one(x, y) and within.get(e, "") not in whole:
            raise ConflictError(within.get(e, ""), DIFFERS)
        yield _edge(x, y, owners.setdefault(id(memory_of(y.operand)), e))


def _affine(more: Kept, most: Kept) -> Kept:
    """What is kept for any number of samples, from what is kept for two of them."""
    slope = (most.per_sample - more.per_sample) / (MOST - MORE)
    return more._replace(constant=more.per_sample - slope * MORE, per_sample=slope)


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
            return of_kind(a, (_common(x, y, within) for x, y in zip(a, b, strict=True)))
    elif isinstance(a, Mapping):
        if a.keys() == b.keys():
            return {key: _common(a[key], b[key], within) for key in a}
    elif a is b or (not backend.is_array(a) and (a == b or (a != a and b != b))):  # two NaNs
        return a
    elif isinstance(a, int) and a * MORE == b * FEW:
        return Samples(a // FEW)
    raise ConflictError(within, DIFFERS)


def _is_one(few: Tensor, more: Tensor) -> bool:
    """Whether they are one tensor for two numbers of samples."""
    lengths = zip(few.shape, more.shape, strict=False)
    fits = all(n == m or n * MORE == m * FEW for n, m in lengths)
    return few.dtype == more.dtype and few.ndim == more.ndim and fits


def _edge(few: Tensor, more: Tensor, memory: int) -> Edge:
    """An edge, whose axes have no names yet, in the memory of another one or in its own."""
    y = few.operand
    axes = tuple(
        Axis("", n, False) if n == m else Axis("", n // FEW, True)
        for n, m in zip(few.shape, more.shape, strict=False)
    )
    return Edge(axes, y.dtype.name, order_of(y), few.requires_grad or more.requires_grad, memory)


def order_of(array: Array) -> tuple[int, ...]:
    """The axes of an array in the order in which they lie in memory, that of long strides first."""
    return tuple(sorted(range(array.ndim), key=lambda k: (-array.strides[k], k)))
