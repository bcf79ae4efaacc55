"""trace(model, zeros, dtype): the graph of a model, from passes that compute nothing.

The passes run on arrays without numbers (`arrays.meta`), and draw no weights. One has 2 samples and
runs in evaluation mode, the other has 3 and runs in training mode. Lengths that differ are of
samples. Where more differs, or a `forward` reads numbers of a tensor, on which its control flow may
depend, the module with that `forward` is taken whole, and a note says why.

A module that is taken whole may need numbers: all passes then run again on zeros.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
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
from nnmpi.nn.graph import (
    Arguments,
    Axis,
    Call,
    Edge,
    Graph,
    Node,
    SampleCount,
    edges_of,
    mapped,
)
from nnmpi.nn.graph_recorder import STEPS, WRITES, ConflictError, GraphRecorder, note_untraceable
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import UNTRACKED, Pass, current_pass
from nnmpi.nn.registries import REGISTRIES
from nnmpi.nn.sequential import forget_steps
from nnmpi.nn.single_store import SingleStore


class ModelSource(NamedTuple):
    """How the model of a graph is run again, for what ranks do on paper.

    make       a model whose layers are not cut
    inputs     arguments for so many samples
    labels     of so many samples
    objective  the loss of scores that are cut as a sharding says, by the Comms of the axes
    cache      what was recorded of runs
    """

    make: Callable[[], Module]
    inputs: Callable[[int], Arguments]
    labels: Callable[[int], np.ndarray] | None
    objective: Callable[[Any, Any], Any] | None
    cache: dict[Any, Any]


FEW, MORE = 2, 3
"""The samples of the passes, in evaluation and in training; one is in memory at a time."""

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
    """The graph of a model that is called with zeros(n), arguments for n samples.

    `check` gets what the model returns for FEW samples. `labels`, `objective` and `build`, which
    makes another model, are kept for the steps of ranks on paper (`ModelSource`). Raises what the
    model or `check` raise; and MemoryError, within the first pass, if numbers are needed and the
    largest pass would not fit in memory. The model is left as it was.
    """
    notes: dict[str, str] = {}
    while True:
        run = partial(_pass, model, zeros, dtype, notes, on)
        try:
            few = run(FEW, _room_check(on), check)
            more = run(MORE)
            source = ModelSource(_model_factory(model, build), zeros, labels, objective, {})
            return merged(few, more, notes)._replace(source=source)
        except ConflictError as found:
            notes[found.path] = found.note
        except NumbersReadError:
            if on is not META:
                raise
            on = CPU


def _model_factory(model: Module, build: Callable[[], Module] | None) -> Callable[[], Module]:
    """A function that makes the model again: a copy, unless a module has a `forward` of its own,
    which may be bound to the module that it was made for."""
    if build and any("forward" in vars(m) for m in model.modules()):
        return build
    return partial(blank, blank(model))


def _room_check(on: Backend) -> Callable[[int], object]:
    """A function that raises MemoryError if the first pass holds so much that the largest one would
    not fit."""
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
    grown: Callable[[int], object] = lambda held: None,
    check: Callable[[Any], object] = lambda outputs: None,
) -> GraphRecorder:
    """Record one pass over the model with n samples: with MORE in training, with FEW not."""
    arguments = mapped(_without_numbers, zeros(n)) if on is META else zeros(n)
    with unchanged(model), np.errstate(all="ignore"):
        for p in model.parameters():
            p.move(PlaceholderStore(p, dtype, on), 0)
        model.train(n == MORE)
        recorder = GraphRecorder(model, notes, grown)
        forget_steps(model)
        watched = _TracedPass(0, None, UNTRACKED, around=recorder.forward)
        tokens = recording.set(recorder), current_pass.set(watched)
        try:
            recorder.run(model, arguments)
        finally:
            recording.reset(tokens[0])
            current_pass.reset(tokens[1])
    check(recorder.returned)
    recorder.free()
    return recorder


class _TracedPass(Pass):
    """A pass whose step and samples `forward` of a module that is looked into does not read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("step", "samples"):
            note_untraceable(STEPS)
        return super().__getattribute__(name)


class PlaceholderStore(SingleStore):
    """The store of a parameter that is not drawn."""

    def __init__(self, p: Parameter, dtype: Any, on: Backend) -> None:
        memory = on.xp.zeros([p.shape[k] for k in p.memory_axes], dtype)
        super().__init__(memory.transpose(inverse(p.memory_axes)))

    def written(self, i: int) -> None:
        note_untraceable(WRITES)


def _without_numbers(value: Any) -> Any:
    """A tensor of floats without its numbers; anything else as it is."""
    if isinstance(value, Tensor) and is_float(value.dtype):
        return Tensor(meta.like(value.operand), value.requires_grad)
    return value


# ---- a model that is tried out


def blank(model: Module) -> Module:
    """A copy of the tree of modules, with parameters that are not drawn; buffers and other
    attributes are shared with the model."""
    twins: dict[Any, Any] = {m: copy(m) for m in dict.fromkeys(model.modules())}
    twins |= {p: p.undrawn() for p in dict.fromkeys(model.parameters())}
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
def unchanged(module: Module) -> Iterator[None]:
    """Within it buffers are copies, and parameters may move: then all is as before.

    So are modes and other attributes, but for what is inside these.
    """
    modules = list(dict.fromkeys(module.modules()))
    attributes = [vars(m) | {name: dict(vars(m)[name]) for name in REGISTRIES} for m in modules]
    parameters = [(p, p.store, p.index, p.has_grad) for p in module.parameters()]
    buffers = [(m, name, getattr(m, name)) for m in modules for name in m._buffers]
    try:
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
        for m, saved in zip(modules, attributes, strict=True):
            vars(m).clear()
            vars(m).update(saved)


# ---- one graph of several passes


def merged(few: GraphRecorder, more: GraphRecorder, notes: Mapping[str, str]) -> Graph:
    """One graph; raises ConflictError where the passes differ in more than lengths.

    `notes` has the modules that are taken whole already.
    """
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
    )
    return with_names(graph)


def _edges(few: GraphRecorder, more: GraphRecorder, notes: Mapping[str, str]) -> Iterator[Edge]:
    """The edges, each in the memory of another one or in its own."""
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
    """The calls that the module of a path and those below it make."""
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
    """The value that stands for both; integers in the ratio of the samples become SampleCount."""

    def both(a: Any, b: Any) -> Any:
        if a is b or (not backend.is_array(a) and (a == b or (a != a and b != b))):  # two NaNs
            return a
        if isinstance(a, int) and a * MORE == b * FEW:
            return SampleCount(a // FEW)
        raise ConflictError(within, DIFFERS)

    if mapped(type, few) != mapped(type, more):
        raise ConflictError(within, DIFFERS)
    return mapped(both, few, more)
