"""Attention by cuDNN (SDPA) on 16-bit arrays of CuPy; scores are not stored in memory.

    N  samples      T  queries      D  elements of a query and a key
    K  key heads    S  keys         E  elements of a value
    G  query heads of each key head

    q (N, K, G, T, D)    k (N, K, S, D)    v (N, K, S, E)    y (N, K, G, T, E)

    lse (N, K, G, T)     float32: the logarithm of the sum of e^score of each query

Arrays are read and written in place, by their strides. The backward pass is deterministic.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from nnmpi.addons.cuda import cudnn
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import is_half


class HeadRows(NamedTuple):
    """The sizes (samples, heads, positions, elements) of an array for cuDNN, and its strides."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]


class SdpaGraph(NamedTuple):
    """The description of a graph of attention, forward or backward.

    q, k, v, y, lse    the arrays that it reads; a forward pass writes y and lse
    gradients          the gradients of y, q, k and v, in this order; empty for a forward pass
    """

    q: HeadRows
    k: HeadRows
    v: HeadRows
    y: HeadRows
    lse: HeadRows
    gradients: tuple[HeadRows, ...]
    scale: float
    causal: bool
    dtype: str

    @property
    def tf32(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "attention, which matrix products compute instead"

    def tensors(self, graph: Any) -> list[Any]:
        """Adds attention, or its gradient, to a cuDNN graph; returns the tensors q, k, v, y and
        lse, and for a backward pass also dy, dq, dk and dv."""

        def read(name: str, rows: HeadRows, dtype: str) -> Any:
            sizes: dict[str, list[int]] = {"dim": [*rows.dim], "stride": [*rows.stride]}
            return graph.tensor(name=name, data_type=cudnn.type_of(dtype), **sizes)

        inputs = {name: read(name, getattr(self, name), self.dtype) for name in "qkv"}
        options = {"attn_scale": self.scale, "use_causal_mask": self.causal}
        if not self.gradients:
            y, lse = graph.sdpa(name="sdpa", generate_stats=True, **inputs, **options)
            written = cudnn.as_output(y, *self.y, self.dtype)
            return [*inputs.values(), written, cudnn.as_output(lse, *self.lse, "float32")]
        y, lse = read("y", self.y, self.dtype), read("lse", self.lse, "float32")
        dy, *others = self.gradients
        g = read("dy", dy, self.dtype)
        gradients = graph.sdpa_backward(
            name="gradients",
            **inputs,
            o=y,
            dO=g,
            stats=lse,
            use_deterministic_algorithm=True,
            **options,
        )
        written = [
            cudnn.as_output(d, *rows, self.dtype) for d, rows in zip(gradients, others, strict=True)
        ]
        return [*inputs.values(), y, lse, g, *written]


def attention(
    q: Array, k: Array, v: Array, scale: float, causal: bool, y: Array, lse: Array
) -> Any:
    """Computes attention by cuDNN, softmax(scale q k^T) v: writes the result y, and lse, the
    log-sum-exp of each query's scores, which must be contiguous. With `causal`, query i sees keys 0
    to i only.

    Returns NotImplemented if cuDNN has no engine for these arrays.
    """
    return _carried_out((q, k, v, y, lse), (), scale, causal)


def gradients(
    arrays: Sequence[Array], scale: float, causal: bool, derivatives: Sequence[Array]
) -> Any:
    """Computes the gradients of attention: writes dq, dk and dv of `derivatives` (dy, dq, dk, dv),
    from `arrays` (q, k, v, y, lse). `scale` multiplies the scores; with `causal`, query i sees keys
    0 to i only.

    Returns NotImplemented if cuDNN has no engine for these arrays.
    """
    return _carried_out(arrays, derivatives, scale, causal)


def _carried_out(
    arrays: Sequence[Array], derivatives: Sequence[Array], scale: float, causal: bool
) -> Any:
    *rows, lse = arrays
    if not _fits((*rows, *derivatives)) or cudnn.library() is None:
        return NotImplemented
    lse = xp_of(lse).ascontiguousarray(lse)
    q, k, v, y = map(_rows, rows)
    N, H, T, _ = q.dim
    stats = HeadRows((N, H, T, 1), (H * T, T, 1, 1))
    derivative_rows, dtype = tuple(map(_rows, derivatives)), rows[0].dtype.name
    operation = SdpaGraph(q, k, v, y, stats, derivative_rows, scale, causal, dtype)
    if not cudnn.can(operation, xp_of(lse)):
        return NotImplemented
    cudnn.run(operation, (*rows, lse, *derivatives))
    return None


def _fits(arrays: Sequence[Array]) -> bool:
    """True if the arrays share a 16-bit dtype, and have a memory layout that cuDNN reads.

    False for a single query, as in decoding: each number of keys would need another graph.
    """
    q = arrays[0]
    return (
        is_half(q.dtype)
        and not of(q).is_host
        and q.shape[3] > 1
        and all(
            a.dtype == q.dtype
            and a.size > 0
            and a.strides[-1] == a.itemsize
            and a.data.ptr % cudnn.ALIGNED == 0
            for a in arrays
        )
    )


def _rows(a: Array) -> HeadRows:
    """Returns the sizes (samples, heads, positions, elements) and strides of an array (N, K, S, D),
    or (N, K, G, T, D), whose K G heads are at a constant distance in memory."""
    stride = [s // a.itemsize for s in a.strides]
    if a.ndim == 4:
        return HeadRows(a.shape, (*stride,))
    N, K, G, T, D = a.shape
    return HeadRows((N, K * G, T, D), (stride[0], stride[2 if G > 1 else 1], *stride[3:]))
