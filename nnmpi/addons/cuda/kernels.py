"""The launches of CUDA kernels for arguments that they take.

Each has the name and arguments of the NumPy kernel that it replaces on a GPU (`native/table.py`).
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nnmpi.addons.cuda import column_sums, losses, norms
from nnmpi.addons.cuda.launch import (
    FLOAT,
    THREADS,
    Launch,
    Layout,
    are_dense,
    counts,
    fits,
    float32,
    float64,
    launched,
    same_layout,
    type_of,
)
from nnmpi.arrays.backend import Array, is_array


@launched
def _bias_relu(lines: Layout, bias: Layout | None, zero: Any) -> Launch | None:
    width, rows = lines.shape[-1], [a for a in (bias, zero) if isinstance(a, Layout)]
    if not fits(lines) or not are_dense(lines.dtype, lines, *rows):
        return None
    if any(a.shape != (width,) for a in rows):
        return None
    args = (lines, bias, *counts(lines.size, width), np.int32(zero is not None))
    return Launch("elementwise", "bias_relu", lines.size, args, type_of(lines.dtype))


def bias_relu_loop(lines: Array, bias: Array | None, zero: Array | float | None) -> Any:
    return None if bias is None and zero is None else _bias_relu(lines, bias, zero)


def _each(file: str, name: str) -> Callable[..., Any]:
    """Makes a function that launches an elementwise kernel of the file `file` on arrays.

    The function returns NotImplemented unless all arrays have the same memory layout.
    """

    @launched
    def loop(*arrays: Layout) -> Launch | None:
        if not same_layout(*arrays):
            return None
        n = arrays[0].size
        return Launch(file, name, n, (*arrays, *counts(n)), type_of(arrays[0].dtype))

    return loop


def _step(name: str, arrays: int, floats: int, flags: int = 0) -> Callable[..., Any]:
    """Makes a function that launches the CUDA kernel `name` of an optimizer step, such as "adam".
    The function returns NotImplemented if the kernel does not fit its arguments, which are, in this
    order:

    - as many arrays as `arrays` says: the parameters, their gradients (which may have 16 bits), and
      optimizer state; the others are float32
    - an array for 16-bit copies of the parameters, or None
    - as many floating-point constants as `floats` says, such as the learning rate
    - as many integer constants as `flags` says
    - the factor of the gradients: a number, or an array on the GPU with two elements, which
      `decide_loop` has written: the factor, and 1 if the step is made or 0 if skipped
    """

    @launched
    def step(*args: Any) -> Launch | None:
        p, g, *sums = args[:arrays]
        values, *constants, factor = args[arrays:]
        plain = are_dense(np.float32, p, *sums) and are_dense(g.dtype, g)
        values_fit = values is None or (fits(values) and are_dense(values.dtype, values))
        same_size = all(a is None or a.size == p.size for a in (g, *sums, values))
        if not (fits(p) and fits(g) and plain and values_fit and same_size):
            return None
        decided = factor if isinstance(factor, Layout) else None
        float32s = map(float32, (*constants[:floats], 1.0 if decided is not None else factor))
        int32s = map(np.int32, constants[floats:])
        args = (p, g, *sums, values, decided, *counts(p.size), *float32s, *int32s)
        T = FLOAT if values is None else type_of(values.dtype)
        return Launch("optimizers", name, p.size, args, T, type_of(g.dtype))

    return step


@launched
def squares_loop(g: Layout, factor: Any, sums: Layout) -> Launch | None:
    if not fits(g) or not are_dense(g.dtype, g) or not are_dense(np.float32, sums):
        return None
    args = (g, sums, *counts(g.size, BLOCK_OF_SQUARES), float32(factor))
    return Launch("optimizers", "squares", sums.size * THREADS, args, type_of(g.dtype))


@launched
def decide_loop(
    loss: Layout, squares: Layout, factor: Any, most: Any, by: Layout, shown: Layout
) -> Launch | None:
    is_float, plain = loss.dtype == np.float64 or fits(loss), are_dense(np.float64, squares, shown)
    if not (is_float and plain and fits(by) and are_dense(FLOAT, by)):
        return None
    args = (loss, squares, by, shown, float64(factor), float64(most))
    return Launch("optimizers", "decide", 1, args, type_of(loss.dtype))


BLOCK_OF_SQUARES = 8192
"""The number of elements that a block squares and adds up, as in kernels/steps.py."""


# ---- pooling


def _windows(z: Layout) -> list[np.uint32] | None:
    """Returns the sizes and strides of pooling windows z (2, 2, N, h, w, C), counted in elements.

    None if z is not such a view of images, with adjacent channels.
    """
    if z.ndim != 6 or not fits(z) or z.strides[5] != z.dtype.itemsize:
        return None
    down, right, *places, _ = (stride // z.dtype.itemsize for stride in z.strides)
    return counts(prod(z.shape[2:]), *z.shape[3:], down, right, *places)


def _pooling(name: str, order: tuple[int, int, int]) -> Callable[..., Any]:
    """Makes a function that launches a kernel of pooling.

    The function takes the arrays of the kernel: windows, values and the places of the largest, of
    which `order` says where they are.
    """

    @launched
    def loop(*arrays: Layout) -> Launch | None:
        z, y, largest = (arrays[i] for i in order)
        sizes = _windows(z)
        plain = are_dense(z.dtype, y) and are_dense(np.uint8, largest)
        if sizes is None or not plain or y.shape != z.shape[2:]:
            return None
        return Launch("elementwise", name, y.size, (*arrays, *sizes), type_of(z.dtype))

    return loop


@launched
def _dropout_mask(
    index: Layout, rows: Layout, mask: Layout, in_memory: Layout | None, least: int, *numbers: Any
) -> Launch | None:
    plain = are_dense(np.uint32, index) and are_dense(np.int64, rows)
    if not fits(mask) or not plain or not are_dense(mask.dtype, mask):
        return None
    *key, factor = numbers
    sizes = counts(mask.size, index.shape[0])
    args = (index, rows, mask, in_memory, *sizes, *key, *counts(least), float32(factor))
    return Launch("elementwise", "dropout_mask", mask.size, args, type_of(mask.dtype))


def dropout_mask_loop(index: Array, rows: Array, *args: Any) -> Any:
    *words, least, factor, mask = args
    in_memory = words[0] if is_array(words[0]) else None
    # a key is new each time: numbers of NumPy, by whose values launches are not told apart
    key = map(np.uint32, words if in_memory is None else [0] * 4)
    return _dropout_mask(index, rows, mask, in_memory, least, *key, factor)


@launched
def add_sorted_loop(to: Layout, rows: Layout, order: Layout, g: Layout) -> Launch | None:
    if not fits(to) or not are_dense(to.dtype, to, g) or not are_dense(np.int64, rows, order):
        return None
    args = (to, rows, order, g, *counts(rows.size, to.size // to.shape[0]))
    return Launch("elementwise", "add_sorted", rows.size * THREADS, args, type_of(to.dtype))


# ---- softmax


def _along_rows(name: str, logarithm: bool) -> Callable[..., Any]:
    """Makes a function that launches a softmax kernel along one axis of its arrays.

    The function takes arrays and an axis, which must be the last one in memory; with `logarithm` it
    computes log-softmax.
    """

    @launched
    def loop(*args: Any) -> Launch | None:
        *arrays, axis = args
        x = arrays[0]
        order = [i for i in range(x.ndim) if i != axis % x.ndim]
        if not fits(x) or not are_dense(x.dtype, *(a.transpose([*order, axis]) for a in arrays)):
            return None
        K = x.shape[axis]
        args = (*arrays, *counts(x.size // K, K), np.int32(logarithm))
        return Launch("softmax", name, x.size // K * THREADS, args, type_of(x.dtype))

    return loop


@launched
def probabilities_loop(s: Layout, lse: Layout, scale: Any, later: int) -> Launch | None:
    if not fits(s) or not are_dense(np.float32, s, lse):
        return None
    rows, K = s.shape[-2:]
    args = (s, lse, *counts(lse.size, K, rows), float32(scale), np.int32(later))
    return Launch("softmax", "probabilities", lse.size * THREADS, args)


@launched
def scores_gradient_loop(
    s: Layout, dp: Layout, lse: Layout, delta: Layout, scale: Any, later: int
) -> Launch | None:
    if not fits(s) or not are_dense(np.float32, s, dp, lse, delta):
        return None
    rows, K = s.shape[-2:]
    constants = (*counts(s.size, K, rows), float32(scale), np.int32(later))
    return Launch("softmax", "scores_gradient", s.size, (s, dp, lse, delta, *constants))


def _cell(name: str) -> Callable[..., Any]:
    """Makes a function that launches the CUDA kernel of one step of a recurrent layer.

    The function takes the dense arrays of the step: states (n, H), and gates (n, several H).
    """

    @launched
    def loop(*arrays: Layout) -> Launch | None:
        state = min(arrays, key=lambda a: a.size)
        if not fits(state) or not are_dense(state.dtype, *arrays):
            return None
        args = (*arrays, *counts(state.size, state.shape[1]))
        return Launch("recurrent", name, state.size, args, type_of(state.dtype))

    return loop


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(bias_relu_loop, dropout_mask_loop, add_sorted_loop),
    *(probabilities_loop, scores_gradient_loop, squares_loop, decide_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {
    **{loop.__name__: loop for loop in NAMED_LOOPS},
    "pool_loop": _pooling("pool", (0, 1, 2)),
    "unpool_loop": _pooling("unpool", (2, 0, 1)),
    "relu_loop": _each("elementwise", "relu"),
    "relu_gradient_loop": _each("elementwise", "relu_gradient"),
    "tanh_loop": _each("activations", "tanh_value"),
    "tanh_gradient_loop": _each("activations", "tanh_gradient"),
    "sigmoid_loop": _each("activations", "sigmoid_value"),
    "sigmoid_gradient_loop": _each("activations", "sigmoid_gradient"),
    "silu_loop": _each("activations", "silu"),
    "silu_gradient_loop": _each("activations", "silu_gradient"),
    "gelu_loop": _each("activations", "gelu"),
    "gelu_tanh_loop": _each("activations", "gelu_tanh"),
    "softmax_loop": _along_rows("softmax", False),
    "softmax_gradient_loop": _along_rows("softmax_gradient", False),
    "log_softmax_loop": _along_rows("softmax", True),
    "log_softmax_gradient_loop": _along_rows("softmax_gradient", True),
    "lstm_loop": _cell("lstm"),
    "lstm_gradient_loop": _cell("lstm_gradient"),
    "gru_loop": _cell("gru"),
    "gru_gradient_loop": _cell("gru_gradient"),
    "adam_loop": _step("adam", 5, 6),
    "sgd_loop": _step("sgd", 3, 4, 1),
    "rmsprop_loop": _step("rmsprop", 5, 6),
    **norms.KERNELS,
    **column_sums.KERNELS,
    **losses.KERNELS,
}
"""The CUDA kernels of this folder by their names in the table."""
