"""Functions that check and convert the arguments of CUDA kernels, then launch them.

Each has the name and arguments of the NumPy kernel that it replaces on a GPU (`native/table.py`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.addons.cuda import norms
from nnmpi.addons.cuda.launch import (
    FLOAT,
    THREADS,
    address,
    are_dense,
    counts,
    fits,
    run,
    same_layout,
    type_of,
)
from nnmpi.arrays.backend import Array, is_array, xp_of

NARROW = 32  # up to this many classes a thread has a row of scores; for more a block has one
ROWS_OF_BLOCK = 4 * THREADS  # up to this many rows one block has all, and adds up their losses


def bias_relu_loop(lines: Array, bias: Array | None, zero: Array | None) -> Any:
    width = lines.shape[-1]
    if not fits(lines) or not are_dense(lines.dtype, lines, bias, zero):
        return NotImplemented
    if any(a is not None and a.shape != (width,) for a in (bias, zero)):
        return NotImplemented
    if bias is not None or zero is not None:
        sizes, cuts = counts(lines.size, width), np.int32(zero is not None)
        args = (lines, bias, *sizes, cuts)
        run("elementwise", "bias_relu", lines.size, args, type_of(lines.dtype))
    return None


def _each(file: str, name: str) -> Callable[..., Any]:
    """Makes a function that launches an elementwise kernel of the file `file` on arrays.

    The function returns NotImplemented unless all arrays have the same memory layout.
    """

    def loop(*args: Any) -> Any:
        arrays = same_layout(*args)
        if arrays is None:
            return NotImplemented
        n = args[0].size
        return run(file, name, n, (*arrays, *counts(n)), type_of(args[0].dtype))

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

    def step(*args: Any) -> Any:
        p, g, *sums = args[:arrays]
        values, *constants, factor = args[arrays:]
        plain = are_dense(np.float32, p, *sums) and are_dense(g.dtype, g)
        values_fit = values is None or (fits(values) and are_dense(values.dtype, values))
        same_size = all(a is None or a.size == p.size for a in (g, *sums, values))
        if not (fits(p) and fits(g) and plain and values_fit and same_size):
            return NotImplemented
        decided = factor if is_array(factor) else None
        float32s = map(np.float32, (*constants[:floats], 1.0 if decided is not None else factor))
        int32s = map(np.int32, constants[floats:])
        args = (p, g, *sums, values, decided, *counts(p.size), *float32s, *int32s)
        T = FLOAT if values is None else type_of(values.dtype)
        return run("optimizers", name, p.size, args, T, type_of(g.dtype))

    return step


def squares_loop(g: Array, factor: float, sums: Array) -> Any:
    if not fits(g) or not are_dense(g.dtype, g) or not are_dense(np.float32, sums):
        return NotImplemented
    args = (g, sums, *counts(g.size, BLOCK_OF_SQUARES), np.float32(factor))
    return run("optimizers", "squares", len(sums) * THREADS, args, type_of(g.dtype))


def decide_loop(
    loss: Array, squares: Array, factor: float, most: float, by: Array, shown: Array
) -> Any:
    is_float, plain = loss.dtype == np.float64 or fits(loss), are_dense(np.float64, squares, shown)
    if not (is_float and plain and fits(by) and are_dense(FLOAT, by)):
        return NotImplemented
    args = (loss, squares, by, shown, np.float64(factor), np.float64(most))
    return run("optimizers", "decide", 1, args, type_of(loss.dtype))


BLOCK_OF_SQUARES = 8192
"""The number of elements that a block squares and adds up, as in kernels/steps.py."""


# ---- pooling


def _windows(z: Array) -> tuple[np.uint32, ...] | None:
    """Returns the sizes and strides of pooling windows z (2, 2, N, h, w, C), counted in elements.

    None if z is not such a view of images, with adjacent channels.
    """
    if z.ndim != 6 or not fits(z) or z.strides[5] != z.itemsize:
        return None
    down, right, *places, _ = (stride // z.itemsize for stride in z.strides)
    return (*counts(z[0, 0].size, *z.shape[3:], down, right, *places),)


def _pooling(name: str, z_first: bool) -> Callable[..., Any]:
    def loop(z: Array, *others: Array) -> Any:
        (y, largest), sizes = others, _windows(z)
        plain = are_dense(z.dtype, y) and are_dense(np.uint8, largest)
        if sizes is None or not plain or y.shape != z.shape[2:]:
            return NotImplemented
        arrays = (address(z), y, largest) if z_first else (y, largest, address(z))
        return run("elementwise", name, y.size, (*arrays, *sizes), type_of(z.dtype))

    return loop


pool_loop, _unpool_loop = _pooling("pool", True), _pooling("unpool", False)


def unpool_loop(g: Array, largest: Array, dz: Array) -> Any:
    return _unpool_loop(dz, g, largest)


def dropout_mask_loop(index: Array, rows: Array, *args: Any) -> Any:
    *words, least, factor, mask = args
    in_memory = None if isinstance(words[0], int) else address(words[0])
    plain = are_dense(np.uint32, index) and are_dense(np.int64, rows)
    if not fits(mask) or not plain or not are_dense(mask.dtype, mask):
        return NotImplemented
    numbers = counts(mask.size, len(index), *([0] * 4 if in_memory else words), least)
    args = (index, rows, mask, in_memory, *numbers, np.float32(factor))
    return run("elementwise", "dropout_mask", mask.size, args, type_of(mask.dtype))


def add_sorted_loop(to: Array, rows: Array, order: Array, g: Array) -> Any:
    if not fits(to) or not are_dense(to.dtype, to, g) or not are_dense(np.int64, rows, order):
        return NotImplemented
    args = (to, rows, order, g, *counts(len(rows), to.size // len(to)))
    return run("elementwise", "add_sorted", len(rows) * THREADS, args, type_of(to.dtype))


# ---- softmax and cross-entropy


def class_losses_loop(
    z: Array, labels: Array, scale: float, loss: Array, sums: Array, at: Array
) -> Any:
    plain = are_dense(z.dtype, z) and are_dense(np.float32, loss, sums)
    if not fits(z) or not plain or not are_dense(np.int64, at) or labels.shape != at.shape:
        return NotImplemented
    if not are_dense(np.int64, labels):
        at[...] = labels
        labels = at
    n, C = z.shape
    losses = loss if loss.ndim else xp_of(z).empty(n, "float32")
    fused = C <= NARROW and n <= ROWS_OF_BLOCK and not loss.ndim
    args = (z, labels, losses, sums, at, loss if fused else None, *counts(n, C), np.float32(scale))
    name, threads = ("narrow_losses", n) if C <= NARROW else ("wide_losses", n * THREADS)
    run("softmax", name, 1 if fused else threads, args, type_of(z.dtype))
    if not loss.ndim and not fused:
        run("softmax", "sum_losses", 1, (losses, loss, *counts(n), np.float32(scale)))
    return None


def class_gradient_loop(z: Array, at: Array, sums: Array, g: Array, scale: float, dz: Array) -> Any:
    plain = are_dense(z.dtype, z, dz) and are_dense(np.float32, sums, g)
    if not fits(z) or not plain or not are_dense(np.int64, at):
        return NotImplemented
    constants = *counts(*z.shape), np.int32(g.ndim > 0), np.float32(scale)
    return run(
        "softmax", "class_gradient", z.size, (z, at, sums, g, dz, *constants), type_of(z.dtype)
    )


def _along_rows(name: str, logarithm: bool) -> Callable[..., Any]:
    """Makes a function that launches a softmax kernel along one axis of its arrays.

    The function takes arrays and an axis, which must be the last one in memory; with `logarithm` it
    computes log-softmax.
    """

    def loop(*args: Any) -> Any:
        *arrays, axis = args
        if not fits(arrays[0]):
            return NotImplemented
        order = [i for i in range(arrays[0].ndim) if i != axis % arrays[0].ndim]
        arrays = [a.transpose(*order, axis) for a in arrays]
        x = arrays[0]
        if not are_dense(x.dtype, *arrays):
            return NotImplemented
        K = x.shape[-1]
        constants = *counts(x.size // K, K), np.int32(logarithm)
        return run("softmax", name, x.size // K * THREADS, (*arrays, *constants), type_of(x.dtype))

    return loop


def probabilities_loop(s: Array, p: Array, lse: Array, later: int) -> Any:
    if not fits(s) or not are_dense(np.float32, s, p, lse):
        return NotImplemented
    rows, K = s.shape[-2:]
    args = (s, p, lse, *counts(lse.size, K, rows), np.int32(later))
    return run("softmax", "probabilities", lse.size * THREADS, args)


def scores_gradient_loop(
    s: Array, dp: Array, lse: Array, delta: Array, scale: float, later: int
) -> Any:
    if not fits(s) or not are_dense(np.float32, s, dp, lse, delta):
        return NotImplemented
    rows, K = s.shape[-2:]
    constants = (*counts(s.size, K, rows), np.float32(scale), np.int32(later))
    return run("softmax", "scores_gradient", s.size, (s, dp, lse, delta, *constants))


def _cell(name: str) -> Callable[..., Any]:
    """Makes a function that launches the CUDA kernel of one step of a recurrent layer.

    The function takes the dense arrays of the step: states (n, H), and gates (n, several H).
    """

    def loop(*args: Any) -> Any:
        state = min(args, key=lambda a: a.size)
        if not fits(state) or not are_dense(state.dtype, *args):
            return NotImplemented
        constants = counts(state.size, state.shape[1])
        return run("recurrent", name, state.size, (*args, *constants), type_of(state.dtype))

    return loop


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(bias_relu_loop, unpool_loop, dropout_mask_loop, add_sorted_loop),
    *(probabilities_loop, scores_gradient_loop, class_losses_loop, class_gradient_loop),
    *(squares_loop, decide_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {
    **{loop.__name__: loop for loop in NAMED_LOOPS},
    "pool_loop": pool_loop,
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
}
"""The CUDA kernels of this file and of `norms` by their names in the table."""
