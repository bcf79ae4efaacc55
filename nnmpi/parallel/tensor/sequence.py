"""The column of sequence parallelism; rows and embeddings of it have another side.

    x some positions ─► all-gather ─► Column ─► some channels a rank ─► Row ─► reduce-scatter ─► y
    (LayerNorm, Dropout, sums of two activations: each rank computes its positions)

A column keeps its own positions of the input only, and gathers them again for the gradient of its
weight.
"""

from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops.linear import like_weight, linear
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result, column_sum
from nnmpi.kernels.linear import gradients
from nnmpi.nn import Linear
from nnmpi.parallel.tensor.layers import ColumnLinear
from nnmpi.parallel.tensor.sides import Side


class GatheringLinear(ColumnLinear):
    """ColumnLinear of which each rank has some positions of the input (N, T, in_features)."""

    fuses_as = Linear

    def forward(self, x: Any, relu: bool = False, pool: bool = False) -> Tensor:
        return apply(gathering_linear, x, self.weight, self.bias, side=self.side, relu=relu)


def gathering_linear(
    x: Array, w: Array, b: Array | None, *, side: Side, relu: bool = False
) -> Result:
    """`linear` of all positions, of which x (N, t, K) has some; w and b are some outputs."""
    whole = linear(side.whole(x), w, b, relu=relu)
    y, prepare, xp = whole.value, whole.prepare, xp_of(x)

    def vjp_x(g: Array, out: Array | None) -> Array:
        dx = xp.empty((len(g), w.shape[1]), w.dtype)
        gradients(g, dx, w, dx, None, None)  # x itself is not read for that of x
        return side.sum(dx.reshape(*y_shape, w.shape[1]))

    def vjp_w(g: Array, out: Array | None) -> Array:
        dw = xp.empty(w.shape, w.dtype) if out is None else out
        rows = like_weight(side.whole(x), w).reshape(len(g), w.shape[1])
        gradients(g, rows, w, None, dw, None)
        return dw

    def vjp_b(g: Array, out: Array | None) -> Array:
        return column_sum(g, out)

    y_shape = y.shape[:-1]
    return Result(y, (vjp_x, vjp_w, vjp_b), prepare)
