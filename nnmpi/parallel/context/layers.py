"""Layers whose output depends on where in its sequence a position is, for some of the positions."""

from collections.abc import Mapping
from typing import Any

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import summed
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn import Dropout, Module, PositionalEmbedding, SelfAttention
from nnmpi.nn.graph import Graph
from nnmpi.parallel.context.ring import Ring, ring_attention
from nnmpi.parallel.rewriting import become


class OnSomePositions(Module):
    """The base of these layers. `ring` are the ranks that share sequences, `axis_of_positions` is
    that of a sample."""

    ring: Ring
    axis_of_positions: int

    def own_positions(self, x: Any) -> Array:
        """The positions of this rank, where x is; raises ValueError if x has others."""
        x, comm, cut = as_tensor(x), self.ring.comm, self.ring.cut
        here, axis = cut.count(comm.rank), self.axis_of_positions + 1
        if x.ndim <= axis or x.shape[axis] != here:
            raise ValueError(
                f"{type(self).__name__} {self.path}: input of shape {x.shape}; of {cut.length} "
                f"positions this rank, {comm.rank} of {comm.size} along cp, has {here}, along axis "
                f"{axis}"
            )
        return backend.of(x.data).asarray(cut.of(comm.rank))


class PartPositionalEmbedding(OnSomePositions, PositionalEmbedding):
    """x plus the rows of the weight of the positions that are here."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(plus_rows, as_tensor(x), self.weight, index=self.own_positions(x))


def plus_rows(x: Array, w: Array, *, index: Array) -> Result:
    """x (N, t, C) + rows of w (T, C), each of which is taken once; keeps no copy of these."""

    def of_w(g: Array, out: Array | None) -> Array:
        dw = xp_of(g).zeros(shape, g.dtype)
        dw[index] = summed(g, axis=0)
        return dw

    shape = w.shape
    return Result(x + w[index], (lambda g, out: g, of_w))


class PartDropout(OnSomePositions, Dropout):
    """Dropout with the masks of the positions that are here."""

    def forward(self, x: Tensor) -> Tensor:
        self.own_positions(x)
        return super().forward(x)

    def along(self, axis: int, shape: tuple[int, ...], xp: Any) -> tuple[Array, int]:
        if axis != self.axis_of_positions:
            return super().along(axis, shape, xp)
        cut = self.ring.cut
        return xp.asarray(cut.of(self.ring.comm.rank).astype("uint32")), cut.length


class RingSelfAttention(OnSomePositions, SelfAttention):
    """SelfAttention whose keys and values come from all ranks of the ring."""

    def attended(self, qkv: Tensor) -> Tensor:
        positions = self.own_positions(qkv)
        length = self.ring.cut.length
        keep_of = self.keep_of(qkv.data, length) if self.drops else None
        options = {"scale": qkv.shape[-1] ** -0.5, "causal": self.is_causal, "keep_of": keep_of}
        return apply(ring_attention, self.turned(qkv, positions), ring=self.ring, **options)


LAYERS: Mapping[type[Module], type[OnSomePositions]] = {
    PositionalEmbedding: PartPositionalEmbedding,
    Dropout: PartDropout,
    SelfAttention: RingSelfAttention,
}
"""What takes the place of a layer; others work on some positions as they are."""


def on_positions(model: Module, graph: Graph, ring: Ring) -> None:
    """Makes the layers of the model, whose graph it is, those of this rank's positions.

    Every rank calls it on an equal model, before channels are divided. Parameters stay the same.
    """
    modules, axes = dict(model.named_modules()), ring.cut.axes
    for node in graph.nodes:
        kind = LAYERS.get(node.layer) if node.layer else None
        if kind is not None and node.inputs[0] in axes:
            axis = axes[node.inputs[0]] - 1
            become(modules[node.name], kind, {"ring": ring, "axis_of_positions": axis})
