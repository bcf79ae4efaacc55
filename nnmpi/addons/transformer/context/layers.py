"""Context parallelism of models: finds the axis of sequence positions of each activation, and
replaces layers by ones that compute only the positions of this rank. A layer without a rule in
`rules.py` may mix positions, so it raises ValueError."""

from collections.abc import Iterator, Mapping
from typing import Any

from nnmpi.addons.transformer.attention import SelfAttention
from nnmpi.addons.transformer.context.ring import Ring, ring_attention
from nnmpi.addons.transformer.context.rules import RULES
from nnmpi.addons.transformer.context.sequence_cut import SequenceCut
from nnmpi.addons.transformer.sequences import PositionalEmbedding
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import summed
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn import Dropout, Module
from nnmpi.nn.graph import Graph, Node, TensorRef, VariableRef
from nnmpi.parallel.tensor.parallelize import become
from nnmpi.parallel.tensor.possible import is_plain
from nnmpi.parallel.tensor.rules import OPS

# ---- where positions go


def cut_sequences(graph: Graph, ranks: int, length: int) -> SequenceCut:
    """Returns how a model's sequences of `length` positions, along the first axis after that of
    samples, are divided among `ranks` ranks along cp. Raises ValueError for nodes that may combine
    different positions."""
    if length < 2 * ranks:
        raise ValueError(
            f"cp {ranks} cuts sequences into {2 * ranks} chunks, and they have {length} "
            f"positions: use at most --cp {length // 2}, or longer sequences"
        )
    axes = dict.fromkeys(graph.inputs, 1)
    for node in graph.nodes:
        axes |= dict.fromkeys(node.outputs, _behind(graph, node, axes, ranks))
    axes = {e: axis for e, axis in axes.items() if axis}
    for e in sorted(graph.shapes & axes.keys()):
        raise ValueError(
            f"cp {ranks} cuts sequences, but a `forward` of the model reads the shape "
            f"{graph.edges[e].sample} of a sample, of which each rank has a part: use a layer that "
            "has a rule, or --tp, --pp or --dp"
        )
    rings = (k for k, node in enumerate(graph.nodes) if node.layer is SelfAttention)
    return SequenceCut(ranks, length, axes, tuple(rings))


def _behind(graph: Graph, node: Node, axes: Mapping[int, int], ranks: int) -> int:
    """Returns the axis of sequence positions in the outputs of a graph node; 0 if its inputs have
    no such axis. `axes` is a dict: edge (activation) -> its axis of positions. Raises ValueError,
    which names the number of `ranks`, if the node may combine different positions."""
    axes_of_inputs = {axes.get(e, 0) for e in node.inputs}
    if axes_of_inputs <= {0}:
        return 0
    lengths = {len(graph.edges[e].axes) for e in (*node.inputs, *node.outputs)}
    axis = axes_of_inputs.pop()
    behind = None
    if node.layer is None:
        is_alike = len(lengths) == 1 and not axes_of_inputs and node.op in OPS
        behind = axis if is_alike and not any(_reach(graph, node, lengths.pop(), axis)) else None
    elif (rule := RULES.get(node.layer)) and len(node.arguments[0]) == 1 and is_plain(node):
        axes_of_x = len(graph.edges[node.inputs[0]].axes)
        behind = rule(node.settings, axes_of_x, axis)
    if behind is None:
        label = " ".join(filter(None, dict.fromkeys((node.kind, node.name))))
        raise ValueError(
            f"cp {ranks} cuts sequences, but {label} may mix positions: no rule says how to "
            "compute it on some of them; use --tp, --pp or --dp"
        )
    return behind


def _reach(graph: Graph, node: Node, axes: int, axis: int) -> Iterator[bool]:
    """Yields, for each constant, parameter or buffer among a node's arguments, True if it extends
    along the axis of positions, so that each position uses other values of it."""
    for argument in node.arguments[0]:
        if type(argument) is TensorRef:
            continue
        is_use = type(argument) is VariableRef
        array = graph.variables[argument.variable] if is_use else argument
        shape = getattr(array, "shape", ())
        k = axis - (axes - len(shape))
        yield k >= 0 and shape[k] != 1


# ---- layers for some of the positions


class PositionSharded(Module):
    """The base class of layers in context parallelism, which compute only this rank's positions.

    ring               the ranks that share sequences, and the positions of each
    axis_of_positions  the index of the axis of positions, not counting that of samples
    """

    ring: Ring
    axis_of_positions: int

    def own_positions(self, x: Any) -> Array:
        """Returns the indices of this rank's positions, on x's device; raises ValueError if x has
        another number of positions."""
        x, comm, cut = as_tensor(x), self.ring.comm, self.ring.cut
        count, axis = cut.count(comm.rank), self.axis_of_positions + 1
        if x.ndim <= axis or x.shape[axis] != count:
            raise ValueError(
                f"{type(self).__name__} {self.path}: input of shape {x.shape}; of {cut.length} "
                f"positions along axis {axis}, rank {comm.rank} of {comm.size} along cp has {count}"
            )
        return backend.of(x.array).asarray(cut.of(comm.rank))


class PartPositionalEmbedding(PositionSharded, PositionalEmbedding):
    """A PositionalEmbedding in context parallelism, for the positions of this rank."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(plus_rows, as_tensor(x), self.weight, index=self.own_positions(x))


def plus_rows(x: Array, w: Array, *, index: Array) -> Result:
    """Returns x (N, t, C) + w[index] without keeping rows; no index may occur twice."""

    def of_w(g: Array, out: Array | None) -> Array:
        dw = xp_of(g).zeros(shape, g.dtype)
        dw[index] = summed(g, axis=0)
        return dw

    shape = w.shape
    return Result(x + w[index], (lambda g, out: g, of_w))


class PartDropout(PositionSharded, Dropout):
    """A Dropout for this rank's positions that drops what the layer would on one rank."""

    def forward(self, x: Tensor) -> Tensor:
        self.own_positions(x)
        return super().forward(x)

    def along(self, axis: int, shape: tuple[int, ...], xp: Any) -> tuple[Array, int]:
        if axis != self.axis_of_positions:
            return super().along(axis, shape, xp)
        cut = self.ring.cut
        return xp.asarray(cut.of(self.ring.comm.rank).astype("uint32")), cut.length


class RingSelfAttention(PositionSharded, SelfAttention):
    """A SelfAttention for queries at this rank's positions, by ring attention."""

    def attended(self, qkv: Tensor) -> Tensor:
        positions = self.own_positions(qkv)
        length = self.ring.cut.length
        keep_of = self.keep_of(qkv.array, length) if self.drops else None
        options = {"scale": qkv.shape[-1] ** -0.5, "causal": self.is_causal, "keep_of": keep_of}
        return apply(ring_attention, self.rotated(qkv, positions), ring=self.ring, **options)


LAYERS: Mapping[type[Module], type[PositionSharded]] = {
    PositionalEmbedding: PartPositionalEmbedding,
    Dropout: PartDropout,
    SelfAttention: RingSelfAttention,
}
"""The class that replaces each class of layers; other layers need no replacement."""


def shard_positions(model: Module, graph: Graph, ring: Ring) -> None:
    """Replaces layers of a model by ones that compute only this rank's positions of sequences.
    Every rank calls it on an equal model, before layers are divided along tp. Parameters stay the
    same."""
    modules, axes = dict(model.named_modules()), ring.cut.axes
    for node in graph.nodes:
        kind = LAYERS.get(node.layer) if node.layer else None
        if kind is not None and node.inputs[0] in axes:
            axis = axes[node.inputs[0]] - 1
            become(modules[node.name], kind, {"ring": ring, "axis_of_positions": axis})
