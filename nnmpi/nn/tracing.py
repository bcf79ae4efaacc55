"""trace(model, zeros, dtype): records the graph of a model by two passes that compute nothing.

The passes run on arrays without data (`arrays.meta`), and draw no weights. One has 2 samples and
runs in evaluation mode, the other has 3 and runs in training mode. Lengths in the ratio 2 : 3 are
taken as multiples of the number of samples. If the passes differ in more than lengths, or a
`forward` reads elements of a tensor, on which its control flow may depend, the module with that
`forward` becomes a single node, and a note says why.

A module that is recorded as one node may need real elements: then all passes run again on zeros.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend, meta
from nnmpi.arrays.backend import CPU, META, Backend
from nnmpi.arrays.cgroup import memory_available
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.axis_names import with_names
from nnmpi.nn.graph import Arguments, Axis, Call, Edge, Graph, Node, SampleCount, edges_of, mapped
from nnmpi.nn.graph_recorder import (
    STEPS,
    WRITES,
    ConflictError,
    GraphRecorder,
    TracedBuffer,
    note_untraceable,
)
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import UNTRACKED, Pass, current_pass, variables_set
from nnmpi.nn.registries import REGISTRIES, buffers_of
from nnmpi.nn.sequential import forget_steps
from nnmpi.nn.single_store import SingleStore


class ModelSource(NamedTuple):
    """Functions that make the model of a graph and its inputs again.

    make       makes a model whose layers are not sharded
    inputs     returns arguments for a number of samples
    labels     returns labels for a number of samples
    objective  (sharding, Comm of each axis): the Objective of a rank, which may have only a part of
               the scores
    cache      results of earlier simulated runs
    """

    make: Callable[[], Module]
    inputs: Callable[[int], Arguments]
    labels: Callable[[int], np.ndarray] | None
    objective: Callable[[Any, Any], Any] | None
    cache: dict[Any, Any]


FEW, MORE = 2, 3
"""Samples of the traced passes; arrays of one pass at a time are in memory."""

DIFFERS = "its forward does not do the same for any number of samples, in training and evaluation"


def trace(
    model: Module,
    zeros: Callable[[int], Arguments],
    dtype: Any,
    check: Callable[[Any], object] = lambda outputs: None,
    on: Backend = META,
    labels: Callable[[int], np.ndarray] | None = None,
    objective: Callable[[Any, Any], Any] | None = None,
    build: Callable[[], Module] | None = None,
) -> Graph:
    """Returns the graph of a model, recorded in two forward passes on zeros(n), the model's
    arguments for n samples. The model is left unchanged.

    `check` is called with the result of the first pass, and may raise an error. `labels`,
    `objective` and `build`, which makes the model again, are kept (`ModelSource`). Raises the
    errors of the model and of `check`, and MemoryError if a module needs real elements and these
    would not fit in memory.
    """
    notes: dict[str, str] = {}
    while True:
        run = partial(_pass, model, zeros, dtype, notes, on)
        try:
            few = run(FEW, _room_check(on), check)
            more = run(MORE)
            source = ModelSource(_model_factory(model, build), zeros, labels, objective, {})
            return merged(few, more, notes)._replace(source=source)
        except ConflictError as conflict:
            notes[conflict.path] = conflict.note  # and record again, with that module as one node
        except NumbersReadError:
            if on is not META:
                raise
            on = CPU  # a module that is one node reads elements: on zeros it can


def _model_factory(model: Module, build: Callable[[], Module] | None) -> Callable[[], Module]:
    """Returns a function that makes the model again. It copies the model; but if a module instance
    has its own `forward`, which may be bound to that module, it calls `build`."""
    if build and any("forward" in vars(m) for m in model.modules()):
        return build
    return partial(lazy_model, lazy_model(model))


def _room_check(on: Backend) -> Callable[[int], object]:
    """Returns what raises MemoryError if a second pass, larger than the first, would not fit."""
    room = memory_available() if on is CPU else None

    def check(held: int) -> None:
        if room is not None and held * MORE // FEW > room:
            raise MemoryError(
                f"recording the model takes more than {held * MORE / FEW / 1e9:.1f} GB, and "
                f"{room / 1e9:.1f} GB are free"
            )

    return check


def _pass(
    model: Module,
    zeros: Callable[[int], Arguments],
    dtype: Any,
    notes: Mapping[str, str],
    on: Backend,
    n: int,
    on_growth: Callable[[int], object] = lambda held: None,
    check: Callable[[Any], object] = lambda outputs: None,
) -> GraphRecorder:
    """Records one forward pass on zeros(n): in training mode if n is MORE, else in evaluation mode.

    dtype      of the parameters, whose values are replaced by zeros or arrays without data
    notes      the modules to record as single nodes, by path, with the reasons
    on_growth  called with the bytes of all tensors so far, whenever there are more
    """
    arguments = mapped(_without_numbers, zeros(n)) if on is META else zeros(n)
    with unchanged(model), np.errstate(all="ignore"):  # 0 / 0 is of no interest
        for p in model.parameters():
            p.move(PlaceholderStore(p, dtype, on), 0)
        for _, _, t in buffers_of(model.modules()):
            t.__class__ = TracedBuffer
        model.train(n == MORE)
        recorder = GraphRecorder(model, notes, on_growth)
        forget_steps(model)  # cached steps would bypass the recorder
        watched = _TracedPass(0, None, UNTRACKED, around=recorder.forward)
        with variables_set((recording, recorder), (current_pass, watched)):
            recorder.run(model, arguments)
    check(recorder.returned)
    recorder.free()
    return recorder


class _TracedPass(Pass):
    """The Pass while a model is traced. A `forward` that reads `step` or `samples` from it is
    recorded as a single node, since the graph cannot express the result."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("step", "samples"):
            note_untraceable(STEPS)
        return super().__getattribute__(name)


class PlaceholderStore(SingleStore):
    """A parameter's Store while a model is traced: zeros, or no data."""

    def __init__(self, p: Parameter, dtype: Any, on: Backend) -> None:
        memory = on.xp.zeros([p.shape[k] for k in p.memory_axes], dtype)
        super().__init__(memory.transpose(inverse(p.memory_axes)))

    def written(self, i: int) -> None:
        note_untraceable(WRITES)


def _without_numbers(value: Any) -> Any:
    """Returns a floating-point tensor as one without data, and any other value unchanged."""
    if isinstance(value, Tensor) and is_float(value.dtype):
        return Tensor(meta.like(value._array), value._requires_grad)
    return value


# ---- a model that is tried out


def lazy_model(model: Module) -> Module:
    """Returns a copy of the modules with parameters that have no values yet."""
    twins: dict[Any, Any] = {m: copy(m) for m in dict.fromkeys(model.modules())}
    twins |= {p: p.lazy_copy() for p in dict.fromkeys(model.parameters())}
    # children and parents become the copies, so that no copy leads back to the model
    for part, twin in twins.items():
        parent = twins.get(part._parent)
        object.__setattr__(twin, "_parent", parent)
        object.__setattr__(twin, "_name", part._name if parent is not None else "")
        if isinstance(twin, Module):
            registries: tuple[dict[str, Any], ...] = (twin._modules, twin._parameters)
            for registry in registries:
                registry.update((name, twins.get(child)) for name, child in registry.items())
                vars(twin).update(registry)
    root: Module = twins[model]
    forget_steps(root)
    return root


@contextmanager
def unchanged(*parts: Module, others: Iterable[Parameter] = ()) -> Iterator[None]:
    """A context in which modules are traced. Buffers are copies, and parameters, also `others`, may
    be given other stores; at its end, parameters, buffers, modes and all other attributes are the
    objects that they were. Changes inside such an object, such as a list, are not undone."""
    modules = list(dict.fromkeys(m for part in parts for m in part.modules()))
    attributes = [vars(m) | {name: dict(vars(m)[name]) for name in REGISTRIES} for m in modules]
    of_parts = chain.from_iterable(part.parameters() for part in parts)
    parameters = [(p, p.store, p.index, p.has_grad) for p in dict.fromkeys((*of_parts, *others))]
    try:
        for m, name, t in buffers_of(modules):
            setattr(m, name, t._array.copy())
        yield
    finally:
        for p, store, index, has_grad in parameters:
            if store is None:  # it was not drawn
                p.discard()
            else:
                p.move(store, index)
                p.has_grad = has_grad
        for m, saved in zip(modules, attributes, strict=True):
            vars(m).clear()
            vars(m).update(saved)


# ---- one graph of several passes


def merged(few: GraphRecorder, more: GraphRecorder, notes: Mapping[str, str]) -> Graph:
    """Combines two recordings to one graph for any number of samples. Raises ConflictError for a
    module, not yet in `notes`, that must be one node."""
    # the same calls in the same order, or else nodes and edges could not be paired
    if _calls(few.nodes, "") != _calls(more.nodes, ""):
        raise ConflictError(_differing(few.nodes, more.nodes), DIFFERS)
    nodes = (
        replace(node, arguments=_common(node.arguments, other.arguments, node.within))
        for node, other in zip(few.nodes, more.nodes, strict=True)
    )
    graph = Graph(
        tuple(nodes),
        tuple(_edges(few, more, notes)),
        tuple(few.variables),
        few.arguments,
        edges_of(few.outputs),
        tuple(dict.fromkeys(few.order)),
        tuple(_common_calls(few.calls, more.calls)),
        frozenset(few.shapes | more.shapes),
        tuple(few.fused),
        tuple(few.again),
    )
    return with_names(graph)


def _edges(few: GraphRecorder, more: GraphRecorder, notes: Mapping[str, str]) -> Iterator[Edge]:
    """Yields the tensors of the graph; lengths that grow with the number of samples are marked.
    Raises ConflictError if recordings differ in anything else, except within `notes`."""
    within = {e: node.within for node in few.nodes for e in node.outputs}
    for e, (x, y) in enumerate(zip(few.edges, more.edges, strict=True)):
        lengths = [(n.size, m.size) for n, m in zip(x.axes, y.axes, strict=False)]
        fits = all(n == m or n * MORE == m * FEW for n, m in lengths)
        path = within.get(e, "")
        same = x.dtype == y.dtype and len(x.axes) == len(y.axes)
        if not (fits and same) and path not in notes:
            raise ConflictError(path, DIFFERS)
        axes = tuple(Axis(n) if n == m else Axis(n // FEW, True) for n, m in lengths)
        yield y._replace(axes=axes, requires_grad=x.requires_grad or y.requires_grad)


def _common_calls(few: Sequence[Call], more: Sequence[Call]) -> Iterator[Call]:
    others = {(call.path, call.nodes): call.arguments for call in more}
    for call in few:
        if (call.path, call.nodes) in others:
            with suppress(ConflictError):
                arguments = _common(call.arguments, others[call.path, call.nodes], "")
                yield call._replace(arguments=arguments)


def _calls(nodes: Sequence[Node], path: str) -> list[tuple[Any, ...]]:
    """Returns (name, class, caller) of the calls within the module at a path."""
    below = f"{path}." if path else ""
    inside = (n for n in nodes if n.within == path or n.within.startswith(below))
    return [(node.name, node.layer, node.within) for node in inside]


def _differing(few: Sequence[Node], more: Sequence[Node]) -> str:
    """Returns the path of the innermost module whose calls depend on the samples."""
    words = [node.within.split(".") for node in (*few, *more)]
    paths = {".".join(row[:n]) for row in words for n in range(len(row) + 1)}
    differ = (path for path in paths if _calls(few, path) != _calls(more, path))
    return max(differ, key=lambda path: (path.count(".") + bool(path), path))


def _common(few: Any, more: Any, within: str) -> Any:
    """Combines the arguments of a call in both passes; an integer that grows with the samples
    becomes a SampleCount. Raises ConflictError for the module `within` if they differ otherwise."""

    def both(a: Any, b: Any) -> Any:
        if a is b or (not backend.is_array(a) and (a == b or (a != a and b != b))):  # two NaNs
            return a
        if isinstance(a, int) and a * MORE == b * FEW:
            return SampleCount(a // FEW)
        raise ConflictError(within, DIFFERS)

    if mapped(type, few) != mapped(type, more):
        raise ConflictError(within, DIFFERS)
    return mapped(both, few, more)
