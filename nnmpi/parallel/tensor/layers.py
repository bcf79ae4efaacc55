"""Layers whose channels are divided among the ranks of a Comm: ordinary modules.

x whole on all ranks ──► Column ──► some channels a rank ──► Row ──► y whole on all ranks
                                     (ReLU, BatchNorm, pooling, Dropout: local)

One all-reduce serves two layers: in Row in the forward pass, in Column in the backward pass.
Arguments are PyTorch's, with whole sizes; each rank draws, saves and updates its own part of the
weight. On a Comm of one rank they are ordinary layers.

Their ops are the ordinary op on this rank's channels, with one all-reduce in it:

            x        weight             forward          gradient of x
column      whole    some outputs       no message       all-reduce
row         sharded  some inputs        all-reduce       no message

With sequence parallelism, what is whole here is cut along positions: see `specs.py`.

    x some positions ─► all-gather ─► Column ─► some channels a rank ─► Row ─► reduce-scatter ─► y
    (LayerNorm, Dropout, sums of two activations: each rank computes its positions)

Between layers that each rank computes for some samples, it is cut along samples in the same way.

All-reduces are in place, so nothing else may use the array that they sum. The ops here take the
ordinary op as the argument `of`: `linear`, whose channels are the last `axis`, or `conv1d` or
`conv2d`, whose channels are axis 1 and the last in memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result, column_sum
from nnmpi.arrays.kernels.linear import gradients
from nnmpi.arrays.kernels.rows import add_rows
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops.linear import like_weight, linear
from nnmpi.comm import Comm
from nnmpi.nn import Embedding, Linear, Module
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.tensor.ops import Bounds, even_bounds, gather, part_of, span_of
from nnmpi.parallel.tensor.specs import LayerSpec, Replicated, Spec


class Sharded(Module):
    """The base class of layers of which each rank along tp has a part: rank r has channels (or
    rows, or experts) bounds[r] to bounds[r + 1] - 1.

    spec   how ranks hold the activations that are not cut along channels: whole on every rank, or
           cut along positions or samples
    """

    comm: Comm
    bounds: Bounds
    spec: LayerSpec
    weight: Parameter

    def _take(self, comm: Comm, axis: int, names: str, bounds: Bounds | None = None) -> None:
        """Sets `comm` and `bounds`, and replaces the weight by this rank's part along `axis`.
        `names` says what the weight has along it, such as "rows", in error messages."""
        n, label = self.weight.shape[axis], type(self).__name__.removeprefix("Sharded")
        self.comm, self.spec = comm, Replicated(comm)
        self.bounds = bounds or even_bounds(n, comm.size, f"{label} with {n} {names}")
        if len(self.bounds) != comm.size + 1 or (self.bounds[0], self.bounds[-1]) != (0, n):
            raise ValueError(
                f"{label}: bounds {bounds} for {n} channels on {comm.size} ranks: they must be "
                f"{comm.size + 1} numbers from 0 to {n}"
            )
        self.weight = part_of(self.weight, axis, self.bounds, comm)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank {self.comm.rank} of {self.comm.size}"


class Product(Sharded):
    """Linear layers and convolutions with divided channels; the weight is (outputs, inputs, ...).

    keep_part   (Comm, options): replaces weight and bias by this rank's part
    op          the op of the ordinary layer, such as linear
    options     returns the keyword arguments of the op
    axis        the axis of channels in input and output
    """

    bias: Parameter | None
    keep_part: Callable[..., None]
    op: ClassVar[Callable[..., Result]]
    options: Callable[[], dict[str, Any]]
    axis: ClassVar[int]

    def _applied(self, sharded: Callable[..., Result], x: Any, **fused: bool) -> Tensor:
        options = {"of": self.op, "spec": self.spec.of(x), "axis": self.axis, **self.options()}
        options |= {name: True for name, is_wanted in fused.items() if is_wanted}
        return apply(sharded, x, self.weight, self.bias, **options)


class ColumnSharded(Product):
    """Linear layers and convolutions whose outputs are divided among the ranks; every rank has the
    whole input. Rank r computes outputs bounds[r] to bounds[r + 1] - 1; with `gather_output` every
    rank gets all."""

    gather_output: bool

    def keep_part(self, comm: Comm, gather_output: bool = False) -> None:
        self.gather_output = gather_output
        self._take(comm, 0, "outputs")
        self.bias = part_of(self.bias, 0, self.bounds, comm)

    def forward(self, x: Any, relu: bool = False, pool: bool = False) -> Tensor:
        """Returns this rank's part of the output, or the whole one, with fused ReLU and pooling."""
        y = self._applied(column, x, relu=relu, pool=pool)
        return gather(y, self.comm, self.bounds, self.axis) if self.gather_output else y


class RowSharded(Product):
    """Linear layers and convolutions whose inputs are divided: rank r has bounds[r] to bounds[r +
    1] - 1. Every rank gets the whole output, by an all-reduce, and has the whole bias, which is
    added after it."""

    def keep_part(self, comm: Comm, bounds: Bounds | None = None) -> None:
        self._take(comm, 1, "inputs", bounds)

    def forward(self, x: Any, relu: bool = False, pool: bool = False) -> Tensor:
        """Returns the whole output, with a fused ReLU; refuses `pool`, which cannot be fused before
        the sum."""
        if pool:
            raise ValueError(f"{type(self).__name__} cannot fuse pooling: it sums over ranks first")
        return self._applied(row, x, relu=relu)


class _ShardedLinear(Product):
    """The base class of Linear layers whose features are divided among the ranks of a Comm, with
    `gather_output` if output features are, `bounds` if input features are."""

    axis = -1

    def __init__(
        self, in_features: int, out_features: int, comm: Comm, bias: bool = True, **part: Any
    ) -> None:
        super().__init__(in_features, out_features, bias)  # type: ignore[call-arg]  # of Linear
        self.keep_part(comm, **part)


class ColumnLinear(_ShardedLinear, ColumnSharded, Linear):
    """A Linear of whose weight each rank has some rows (see `ColumnSharded`)."""

    fuses_as = Linear


class GatheringLinear(ColumnLinear):
    """A ColumnLinear of whose input each rank has some positions of (N, T, in_features), or some
    samples. The input is gathered for the product, and again for the gradient of the weight, so
    that a rank keeps only its part in between."""

    fuses_as = Linear

    def forward(self, x: Any, relu: bool = False, pool: bool = False) -> Tensor:
        spec = self.spec.of(x, is_part=True)
        y = apply(gathering_linear, x, self.weight, self.bias, spec=spec, relu=relu)
        return gather(y, self.comm, self.bounds, self.axis) if self.gather_output else y


class RowLinear(_ShardedLinear, RowSharded, Linear):
    """A Linear of whose weight each rank has some columns (see `RowSharded`)."""

    fuses_as = Linear


class ShardedEmbedding(Sharded, Embedding):
    """An Embedding whose rows are divided; every rank gets all indices and the whole output."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, comm: Comm, padding_idx: int | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self._take(comm, 0, "rows")

    def forward(self, index: Any) -> Tensor:
        """Returns the rows of the whole, divided table at `index`, of any shape."""
        return apply(
            sharded_lookup,
            self.weight,
            index=self.checked(index),
            start=span_of(self.bounds, self.comm)[0],
            padding=self.padding_idx,
            spec=self.spec.of(index),
        )


# ---- ops


OpFunction = Callable[..., Result]


def column(
    x: Array, w: Array, b: Array | None, *, of: OpFunction, spec: Spec, axis: int, **options: Any
) -> Result:
    """Returns this rank's part of the outputs of the op `of` (linear or a convolution), given the
    whole x and this rank's rows of w and b; backward, the gradient of x, whose channels are `axis`,
    is summed over ranks: by all-reduce or reduce-scatter, as `spec` says."""
    result = of(x, w, b, **options)
    of_x, *other_vjps = result.vjps

    def summed(g: Any, out: Array | None) -> Array:
        dx = of_x(g, None)
        return spec.sum(dx, _memory_order(dx, axis))

    return result._replace(vjps=(summed, *other_vjps))


def gathering_linear(
    x: Array, w: Array, b: Array | None, *, spec: Spec, relu: bool = False
) -> Result:
    """Returns this rank's channels of the output of `linear` (and ReLU) for all positions or
    samples: x, this rank's, is all-gathered first, as `spec` says."""
    of_all = linear(spec.whole(x), w, b, relu=relu)
    y, prepare, xp = of_all.value, of_all.prepare, xp_of(x)

    def vjp_x(g: Array, out: Array | None) -> Array:
        dx = xp.empty((len(g), w.shape[1]), w.dtype)
        gradients(g, w, None, dx, None, None)
        return spec.sum(dx.reshape(*y_shape, w.shape[1]))

    def vjp_w(g: Array, out: Array | None) -> Array:
        dw = xp.empty(w.shape, w.dtype) if out is None else out
        rows = like_weight(spec.whole(x), w).reshape(len(g), w.shape[1])
        gradients(g, w, rows, None, dw, None)
        return dw

    def vjp_b(g: Array, out: Array | None) -> Array:
        return column_sum(g, out)

    y_shape = y.shape[:-1]
    return Result(y, (vjp_x, vjp_w, vjp_b), prepare)


def row(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    of: OpFunction,
    spec: Spec,
    axis: int,
    relu: bool = False,
    **options: Any,
) -> Result:
    """Returns the output of the op `of` (linear or a convolution) for this rank's part of the
    inputs x and of w: the sum over ranks, plus b, with a ReLU if `relu`. `spec` and `axis` are
    those of the output."""
    result, xp = of(x, w, None, **options), xp_of(x)
    plain = result.prepare
    of_x, of_w, _ = result.vjps
    assert plain is not None
    y = spec.sum(result.value, _memory_order(result.value, axis))
    if b is not None:
        channels_last = xp.moveaxis(y, axis, -1)
        channels_last += b
    if relu:
        xp.maximum(y, 0, out=y)
    passed, outputs = y if relu else None, len(w)

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[Array, Any]:
        """Returns (the gradient before the ReLU, intermediate results for the gradients of x and
        w); needs[i] is True if argument i (x, w, b) needs a gradient."""
        if passed is not None:
            g = g * (passed > 0)
        # if g is cut, it is gathered here once, for the vjps of both x and w
        return g, plain(spec.whole(g), (*needs[:2], False)) if True in needs[:2] else None

    def of_b(shared: tuple[Array, Any], out: Array | None) -> Array:
        return column_sum(xp.moveaxis(shared[0], axis, -1).reshape(-1, outputs), out)

    return Result(
        y,
        (lambda shared, out: of_x(shared[1], out), lambda shared, out: of_w(shared[1], out), of_b),
        prepare,
    )


def _memory_order(array: Array, axis: int) -> tuple[int, ...] | None:
    """Returns the order of axes, as `all_reduce` takes it, of an array with channels at `axis`;
    None: the default."""
    return None if axis == -1 else (0, *range(2, array.ndim), 1)


def sharded_lookup(
    w: Array, *, index: Array, start: int, padding: int | None, spec: Spec
) -> Result:
    """Returns w[index] for a table w that is divided among ranks: this rank has the rows from
    `start` on, and the results are summed over ranks.

    Row `padding` of the whole table gets no gradient. Only a copy of the index is kept for the
    backward pass. No shape depends on the values of the index, so that passes can be recorded.
    """
    xp, index_copy = xp_of(w), index.copy()  # the caller may overwrite it before the backward pass

    def local_rows() -> tuple[Array, Array]:
        """Returns a mask, with one more axis than the index, that is True where the index is a row
        of this rank; and the number of that row in this rank's part, or 0 elsewhere."""
        is_local = (index_copy >= start) & (index_copy < start + len(w))
        return is_local[..., None], (index_copy - start) * is_local

    is_local, rows = local_rows()
    y = xp.where(is_local, w[rows], w.dtype.type(0))

    def vjp(g: Array, out: Array | None) -> Array:
        is_local, rows = local_rows()
        dw = xp.zeros(w.shape, g.dtype)
        add_rows(dw, rows, xp.where(is_local, spec.whole(g), g.dtype.type(0)))
        if padding is not None and start <= padding < start + len(w):
            dw[padding - start] = 0
        return dw

    return Result(spec.sum(y), (vjp,))
