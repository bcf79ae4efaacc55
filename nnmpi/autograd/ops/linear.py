"""Products of matrices, in linear layers, and along axes that letters name (einsum).

Weights come after inputs among the arguments. The tape visits later arguments first, so the
all-reduce of a weight gradient starts before the gradient of the input is computed. The vjps of
weights write into `out`, the gradient buffer.

A node keeps the arrays that its vjps close over until they have run. So y is kept only for ReLU,
and x only for the gradient of w. `mlp` must give the bits of `linear` layer by layer, because
users may get either of them (hooks, recording and layers on several ranks use `linear`).
"""

from collections.abc import Callable, Sequence
from math import prod
from string import ascii_letters
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result, shared_vjps
from nnmpi.arrays.kernels import linear as kernels
from nnmpi.arrays.kernels.epilogue import relu_gradient
from nnmpi.arrays.kernels.precision import cast, in_one_type, widened, widened_products
from nnmpi.autograd.ops.elementwise import unbroadcast


@widened_products
def matmul(a: Array, b: Array) -> Result:
    """a @ b with NumPy's rules: 1-D arguments are vectors, leading axes broadcast."""
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    xp, (a, b) = xp_of(a), in_one_type(a, b)
    # vectors become matrices, so that both gradients are products of matrices
    rows, columns = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b

    def full(g: Array) -> Array:
        g = xp.expand_dims(g, -1) if b.ndim == 1 else g
        return xp.expand_dims(g, -2) if a.ndim == 1 else g

    def gradient(left: Array, other: Array, like: Array) -> Array:
        """left @ other, summed over the axes that were broadcast, and only then rounded to 16
        bits."""
        lead = xp.broadcast_shapes(left.shape[:-2], other.shape[:-2])
        types = types_of(like.dtype)
        dtype = types.sums if types.is_mixed and lead != like.shape[:-2] else None
        return cast(unbroadcast(kernels.matmul(left, other, dtype), like.shape), like.dtype)

    return Result(
        kernels.matmul(a, b),
        (
            lambda g, out: gradient(full(g), columns.swapaxes(-1, -2), rows).reshape(a.shape),
            lambda g, out: gradient(rows.swapaxes(-1, -2), full(g), columns).reshape(b.shape),
        ),
    )


def check_dtype(name: str, dtype: Any, w: Array) -> None:
    """Raises ValueError unless `dtype` is the dtype of the weight."""
    if dtype != w.dtype:
        raise ValueError(
            f"{name}: {dtype} input for {w.dtype} weights: write x.astype('{w.dtype}')"
        )


def like_weight(x: Array, w: Array) -> Array:
    """x in the dtype of a 16-bit weight, if an earlier op left it in the wider type of sums;
    otherwise x unchanged."""
    types = types_of(w.dtype)
    return x.astype(w.dtype) if types.is_mixed and x.dtype == types.sums else x


def _check_linear(shape: Sequence[int], dtype: Any, w: Array) -> None:
    """Raises ValueError unless inputs of this shape and dtype fit the weight (O, K)."""
    if not shape or shape[-1] != w.shape[1]:
        raise ValueError(
            f"linear: input of shape {tuple(shape)} for a weight of shape {w.shape}: "
            f"the last axis must be {w.shape[1]}"
        )
    if dtype != w.dtype:
        check_dtype("linear", dtype, w)


def linear(x: Array, w: Array, b: Array | None, *, relu: bool = False) -> Result:
    """x (..., K) @ w (O, K).T + b (O), then ReLU if `relu`, in one pass over the result."""
    if x.dtype != w.dtype:
        x = like_weight(x, w)
    _check_linear(x.shape, x.dtype, w)
    xp = xp_of(x)
    rows = x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y = xp.empty((len(rows), len(w)), x.dtype)
    kernels.outputs(rows, w, b, y, relu)

    # the tape keeps what the functions below name: shapes, and y only if ReLU needs its signs
    lead_shape, shape, relu_value = x.shape, y.shape, y if relu else None

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        g = g.reshape(shape)
        return xp.ascontiguousarray(g) if relu_value is None else relu_gradient(g, relu_value)

    def vjp_x(g: Array, out: Array | None) -> Array:
        dx = xp.empty((len(g), w.shape[1]), w.dtype)
        kernels.gradients(g, w, None, dx, None, None)
        return dx.reshape(lead_shape)

    def vjp_w(g: Array, out: Array | None) -> Array:
        dw = xp.empty(w.shape, w.dtype) if out is None else out
        kernels.gradients(g, w, rows, None, dw, None)
        return dw

    def vjp_b(g: Array, out: Array | None) -> Array:
        db = xp.empty(len(w), w.dtype) if out is None else out
        kernels.gradients(g, w, None, None, None, db)
        return db

    value = y if x.ndim == 2 else y.reshape(*lead_shape[:-1], w.shape[0])
    return Result(value, (vjp_x, vjp_w, vjp_b), prepare)


def mlp(x: Array, *parameters: Array, relus: tuple[bool, ...]) -> Result:
    """A chain of `linear` layers on x (n, K), with w and b of each layer: the same bits in fewer
    calls."""
    if x.dtype != parameters[0].dtype:
        x = like_weight(x, parameters[0])
    ws, bs, xp, dtype = parameters[::2], parameters[1::2], xp_of(x), x.dtype
    shape, ys = x.shape, list[Array]()
    for w in ws:
        _check_linear(shape, dtype, w)
        shape = shape[0], len(w)
        ys.append(xp.empty(shape, dtype))
    kernels.mlp_outputs(x, ws, bs, tuple(ys), relus)
    inside, last = tuple(ys[:-1]), ys[-1] if relus[-1] else None

    def prepare(g: Array, needs: Sequence[bool]) -> list[Array | None]:
        g, gradients = xp.ascontiguousarray(g), list[Array | None]()
        for a, need in zip((x, *parameters), needs, strict=True):
            gradients.append(xp.empty(a.shape, dtype) if need else None)
        dws, dbs = tuple(gradients[1::2]), tuple(gradients[2::2])
        values = *inside, g if last is None else last  # the kernel reads the last one for ReLU only
        kernels.mlp_gradients(g, x, ws, values, relus, gradients[0], dws, dbs)
        return gradients

    return Result(ys[-1], shared_vjps(1 + len(parameters)), prepare)


@widened
def einsum(*arrays: Array, equation: str) -> Result:
    """The product of the arrays' elements, summed over all letters that are not in the output."""
    xp, (inputs, output) = xp_of(arrays[0]), _letters(equation, [a.ndim for a in arrays])
    sizes: dict[str, int] = {}
    for a, term in zip(arrays, inputs, strict=True):
        for c, n in zip(term, a.shape, strict=True):
            size = sizes.get(c, 1)
            if n != size and 1 not in (n, size):
                shapes = ", ".join(str(a.shape) for a in arrays)
                raise ValueError(
                    f"einsum: {equation!r} does not fit shapes {shapes}: give the axes {c!r} one "
                    f"length, not {size} and {n}"
                )
            sizes[c] = n if size == 1 else size

    def summed(terms: Sequence[str], to: str, *factors: Array) -> Array:
        return xp.einsum(f"{','.join(terms)}->{to}", *factors, optimize=True)

    def vjp_of(k: int) -> Callable[[Array, Array | None], Array]:
        shape, term = arrays[k].shape, inputs[k]
        length = dict(zip(term, shape, strict=True))  # a repeated letter ("ii") occurs once here
        others, terms = [*arrays[:k], *arrays[k + 1 :]], [*inputs[:k], *inputs[k + 1 :]]

        def vjp(g: Array, out: Array | None) -> Array:
            # a letter that occurs in this term only was summed: its elements share one gradient.
            # A letter of length 1 here that was broadcast gets the sum over that axis.
            present = {*output, *"".join(terms)}
            letters = [c for c, n in length.items() if c in present and n == sizes[c]]
            d = summed([output, *terms], "".join(letters), g, *others)
            lengths = dict(zip(letters, d.shape, strict=True))  # 1 if it is 1 in all other terms
            d = d.reshape([lengths.get(c, 1) for c in length])
            d = xp.broadcast_to(d, tuple(length.values()))
            if len(length) == len(term):
                return d
            gradient = xp.zeros(shape, g.dtype)
            summed([term], "".join(length), gradient)[...] = d  # a view of the diagonal
            return gradient

        return vjp

    vjps = tuple(map(vjp_of, range(len(arrays))))
    is_view = len(arrays) == 1 and {*output} == {*inputs[0]}  # otherwise einsum sums into a copy
    return Result(summed(inputs, output, *arrays), vjps, is_view=is_view)


def _letters(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each input and of the output, with unused letters in the place of "..."."""
    inputs_text, arrow, right = equation.replace(" ", "").partition("->")
    terms, dots = inputs_text.split(","), "..."
    named = [term.replace(dots, "", 1) for term in terms]
    output = right.replace(dots, "", 1)
    letters = "".join(named)
    known = {*letters} & {*ascii_letters}
    wrong = [c for c in letters + output if c not in known or output.count(c) > 1]
    if wrong:
        raise ValueError(
            f"einsum: {wrong[0]!r} in {equation!r} does not fit: write letters and '...', as in "
            "'bij,bjk->bik', and after the arrow each letter only once that is before it"
        )
    unnamed = [n - len(names) for n, names in zip(axes, named, strict=False)]
    fits = [n >= 0 and (n == 0 or dots in term) for n, term in zip(unnamed, terms, strict=False)]
    if len(terms) != len(axes) or not all(fits):
        raise ValueError(
            f"einsum: {equation!r} for tensors with {', '.join(map(str, axes))} axes: it needs a "
            "term for each tensor, and a letter for each axis"
        )
    # axes under "..." get unused letters, matched from the last axis as in broadcasting
    longest = max(unnamed)
    free = "".join([c for c in ascii_letters if c not in equation][:longest])
    if not arrow:
        right = dots + "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    inputs = [t.replace(dots, free[longest - n :]) for t, n in zip(terms, unnamed, strict=True)]
    return inputs, right.replace(dots, free)
