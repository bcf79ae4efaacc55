"""merged: one graph from what passes with different numbers of samples have found."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.nn.graph import (
    Axis,
    Call,
    Edge,
    Graph,
    Kept,
    Node,
    SampleCount,
    edges_of,
    mapped,
)
from nnmpi.nn.graph_recorder import ConflictError, GraphRecorder
from nnmpi.nn.kept import memory_of

FEW, MORE, MOST = 2, 3, 6
"""The samples of the passes."""

DIFFERS = "its forward does not do the same for any number of samples, in training and evaluation"


def merged(
    few: GraphRecorder, more: GraphRecorder, most: GraphRecorder, whole: Mapping[str, str]
) -> Graph:
    """One graph; raises ConflictError where the passes differ in more than lengths.

    `whole` are the modules that are taken whole already.
    """
    if _calls(few.nodes, "") != _calls(more.nodes, ""):
        raise ConflictError(_differing(few.nodes, more.nodes), DIFFERS)
    nodes = (
        one._replace(arguments=_common(one.arguments, other.arguments, one.within))
        for one, other in zip(few.nodes, more.nodes, strict=True)
    )
    kept = zip(more.kept, most.kept, strict=True)
    return Graph(
        tuple(nodes),
        tuple(_edges(few, more, whole)),
        tuple(few.variables),
        few.arguments,
        edges_of(few.outputs),
        tuple(dict.fromkeys(few.order)),
        tuple(_common_calls(few.calls, more.calls)),
        frozenset(few.shapes | more.shapes),
        tuple(_affine(at, x, y) for (at, x), (_, y) in kept),
        _affine(range(0), more.loss, most.loss),
    )


def _affine(nodes: range, more: int, most: int) -> Kept:
    """What is kept for any number of samples, from what is kept for two of them."""
    slope = (most - more) / (MOST - MORE)
    return Kept(nodes, more - slope * MORE, slope)


def _edges(few: GraphRecorder, more: GraphRecorder, whole: Mapping[str, str]) -> Iterator[Edge]:
    """The edges, each in the memory of another one or in its own."""
    within = {e: node.within for node in few.nodes for e in node.outputs}
    owners: dict[int, int] = {}
    for e, (x, y) in enumerate(zip(few.tensors, more.tensors, strict=True)):
        lengths, path = [*zip(x.shape, y.shape, strict=False)], within.get(e, "")
        fits = all(n == m or n * MORE == m * FEW for n, m in lengths)
        if not (fits and x.dtype == y.dtype and x.ndim == y.ndim) and path not in whole:
            raise ConflictError(path, DIFFERS)
        yield Edge(
            tuple(Axis(n) if n == m else Axis(n // FEW, True) for n, m in lengths),
            y.dtype.name,
            order_of(y.operand),
            x.requires_grad or y.requires_grad,
            owners.setdefault(id(memory_of(y.operand)), e),
        )


def _common_calls(few: Sequence[Call], more: Sequence[Call]) -> Iterator[Call]:
    others = {(call.path, call.nodes): call.arguments for call in more}
    for call in few:
        if (call.path, call.nodes) in others:
            with suppress(ConflictError):
                arguments = _common(call.arguments, others[call.path, call.nodes], "")
                yield call._replace(arguments=arguments)


def _calls(nodes: Sequence[Node], path: str) -> list[tuple[Any, ...]]:
    """What the module of a path and those below it call."""
    below = f"{path}." if path else ""
    inside = (n for n in nodes if n.within == path or n.within.startswith(below))
    return [(node.name, node.layer, node.within) for node in inside]


def _differing(few: Sequence[Node], more: Sequence[Node]) -> str:
    """The path of the innermost module that does not make the same calls in both."""
    words = [node.within.split(".") for node in (*few, *more)]
    paths = {".".join(row[:n]) for row in words for n in range(len(row) + 1)}
    differ = (path for path in paths if _calls(few, path) != _calls(more, path))
    return max(differ, key=lambda path: (path.count(".") + bool(path), path))


def _common(few: Any, more: Any, within: str) -> Any:
    """What stands for both; whole numbers in the ratio of the samples become SampleCount."""

    def both(a: Any, b: Any) -> Any:
        if a is b or (not backend.is_array(a) and (a == b or (a != a and b != b))):  # two NaNs
            return a
        if isinstance(a, int) and a * MORE == b * FEW:
            return SampleCount(a // FEW)
        raise ConflictError(within, DIFFERS)

    if mapped(type, few) != mapped(type, more):
        raise ConflictError(within, DIFFERS)
    return mapped(both, few, more)


def order_of(array: Array) -> tuple[int, ...]:
    """The axes of an array in the order in which they lie in memory, that of long strides first."""
    return tuple(sorted(range(array.ndim), key=lambda k: (-array.strides[k], k)))
