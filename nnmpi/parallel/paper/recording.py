"""Passes of a stage that are recorded: the layers of a rank run once, on arrays without numbers.

A model whose layers read numbers, as experts do of their gates, runs on zeros instead.
"""

from typing import Any, NamedTuple

import numpy as np

from nnmpi import meta
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.backend import CPU, META, Backend
from nnmpi.dtypes import is_float
from nnmpi.meta import NumbersReadError
from nnmpi.nn.blank import blank
from nnmpi.nn.graph import Arguments, mapped
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import inverse
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.segment import segment
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.remembered import remembered
from nnmpi.parallel.context.layers import on_positions
from nnmpi.parallel.context.ring import Ring
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.paper.layout import layout_on_paper, ranks_on_paper
from nnmpi.parallel.paper.stage import (
    Notes,
    NotingLog,
    PaperStage,
    PassEvents,
    RecordedStats,
    RecordedStore,
    TensorShape,
)
from nnmpi.parallel.step.ports import Joined
from nnmpi.parallel.step.scaling import widened
from nnmpi.parallel.tensor.parallelize import rebuild


class CutModel(NamedTuple):
    """A model whose layers are those of a rank, and what notes what they do."""

    model: Module
    layout: Layout
    notes: Notes
    numbers: dict[Any, int]  # of parameters, in the graph
    on: Backend


def passes(a: Arrangement, rank: int, stage: int, samples: int) -> PassEvents:
    """What the passes of a stage over so many samples do on a rank."""
    at = a.mesh.coordinates(rank)
    where = [at[axis] for axis in LOCAL_SHAPES]
    return _passes(a, stage, samples, a.sums_by(a.mesh.group(rank, "tp")), *where)


@remembered
def _passes(a: Arrangement, stage: int, samples: int, sums_by: str, *where: int) -> PassEvents:
    """What they do on the ranks at these coordinates along the axes that cut activations."""
    at = dict(zip(LOCAL_SHAPES, where, strict=True))
    ranks = ((r, a.mesh.coordinates(r)) for r in a.mesh.group(0, *LOCAL_SHAPES))
    rank = next(r for r, there in ranks if all(there[axis] == i for axis, i in at.items()))
    nodes = a.division.stages[stage].nodes
    cache, key = a.graph.source.cache, (*_cut_key(a), sums_by, *where)
    known: PassEvents | None = cache.get((*key, nodes.start, nodes.stop, samples))
    if known is not None:
        return known
    token = recording.set(True)  # a pass that is computed again asks for the first time in no_grad
    try:
        known = _recorded(a, _cut_model(a, key, rank, META), rank, stage, samples)
    except NumbersReadError:
        known = _recorded(a, _cut_model(a, key, rank, CPU), rank, stage, samples)
    finally:
        recording.reset(token)
    cache[*key, nodes.start, nodes.stop, samples] = known
    return known


def _cut_key(a: Arrangement) -> tuple[Any, ...]:
    """What says how the layers of a rank are cut; kept alive, so that the addresses stay theirs."""
    parts = a.sharding.layers, a.sharding.sequences
    a.graph.source.cache[*map(id, parts)] = parts
    return *map(id, parts), a.dtype, a.sums_dtype


def _cut_model(a: Arrangement, key: tuple[Any, ...], rank: int, on: Backend) -> CutModel:
    """The layers of a rank, of all stages, cut once for all arrangements that cut them so."""
    cache = a.graph.source.cache
    if (*key, on) not in cache:
        cache[*key, on] = _made(a, rank, on)
    cut: CutModel = cache[*key, on]
    return cut


def _made(a: Arrangement, rank: int, on: Backend) -> CutModel:
    graph, notes, ranks = a.graph, Notes(), ranks_on_paper(a, rank)
    model, layout = blank(graph.source.model), layout_on_paper(a, ranks)
    groups = {name: comm.members for name, comm in layout.axis.items()}
    ranks.log = NotingLog(notes, groups)
    if a.mesh.axes["cp"] > 1:
        on_positions(model, graph, Ring(layout.axis["cp"], a.sharding.sequences))
    if a.mesh.axes["tp"] > 1:
        rebuild(model, graph, a.sharding, layout.axis["tp"])
    variables = {name: v for v, variable in enumerate(graph.variables) for name in variable.names}
    numbers = {p: variables[path] for path, p in model.named_parameters()}
    for p, v in numbers.items():
        p.move(RecordedStore(v, p, a.dtype, notes, on), 0)
    model.convert_buffers(a.updated_dtype, on)
    model.train()
    return CutModel(model, layout, notes, numbers, on)


def _recorded(a: Arrangement, cut: CutModel, rank: int, stage: int, samples: int) -> PassEvents:
    """Runs the passes of a stage, in one backward pass and in two halves."""
    notes, part = cut.notes, a.division.stages[stage]
    module = cut.model
    if len(a.stages) > 1:
        module = segment(cut.model, a.graph, part.nodes, part.variables)

    def on_leaf(leaf: Any) -> None:
        if leaf in cut.numbers:
            notes(PaperStage.ready, cut.numbers[leaf])

    def forward() -> tuple[Any, list[Tensor]]:
        for p in cut.numbers:
            p.has_grad = False
        given = _arguments(a, rank, stage, samples, cut.on)
        stats: Any = RecordedStats(notes)
        token = current_pass.set(Pass(0, np.arange(samples), stats, batch=samples))
        try:
            y = module(*given[0], **given[1])
            if stage == len(a.stages) - 1:
                y = _loss(a, rank, cut.layout, y, samples)
        finally:
            current_pass.reset(token)
        tensors = (x for x in (*given[0], *given[1].values()) if isinstance(x, Tensor))
        root = Joined(y) if isinstance(y, tuple) else y
        return root, [x for x in tensors if x.requires_grad]

    notes.taken()
    root, leaves = forward()
    ahead, outputs = notes.taken(), root.parts if isinstance(root, Joined) else (root,)
    shapes = [TensorShape.of(t) for t in outputs]
    if not root.requires_grad:
        return PassEvents(shapes, ahead)
    root.backward(_seed(root, cut.on), on_leaf=on_leaf)
    back = notes.taken()
    if not leaves:  # a first stage has all of its backward pass in the second half
        return PassEvents(shapes, ahead, back, weights=back)
    root, leaves = forward()
    notes.taken()
    rest = root.backward(_seed(root, cut.on), until=leaves)
    inputs = notes.taken()
    rest.finish(on_leaf=on_leaf)
    return PassEvents(shapes, ahead, back, inputs, notes.taken())


def _seed(root: Tensor, on: Backend) -> Any:
    """What a backward pass starts from."""
    if isinstance(root, Joined):
        return root.seed([on.xp.ones_like(t.data) for t in root.parts])
    return on.xp.ones_like(root.data)


def _arguments(a: Arrangement, rank: int, stage: int, samples: int, on: Backend) -> Arguments:
    """What a stage is called with: samples, or what comes from the stage before."""
    if not stage:
        positions = a.own_positions(rank)

        def own(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            array = x.data if positions is None else x.data.take(positions, axis=1)
            return Tensor(meta.like(array) if on is META and is_float(array.dtype) else array)

        given: Arguments = mapped(own, a.graph.source.inputs(samples))
        return given
    at, takes = a.mesh.coordinates(rank), a.division.stages[stage].takes
    found = list[Tensor]()
    for edge, shape in ((a.graph.edges[e], a.local_shape(e, samples, at)) for e in takes):
        memory = on.xp.zeros([shape[k] for k in edge.order], edge.dtype)
        found.append(Tensor(memory.transpose(inverse(edge.order)), edge.requires_grad))
    return tuple(found), {}


def _loss(a: Arrangement, rank: int, layout: Layout, scores: Tensor, samples: int) -> Tensor:
    """The loss of scores as the last stage has them."""
    source, positions = a.graph.source, a.own_positions(rank)
    labels = source.labels(samples)
    if positions is not None and labels.ndim > 1:
        labels = labels.take(positions, axis=1)
    loss: Tensor = source.objective(a.sharding, layout.axis).loss(widened(scores), labels)
    return loss
