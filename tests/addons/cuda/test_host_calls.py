"""The Python functions that a call of a kernel enters, which is what it costs the host, when a call
with arrays of the same layouts has been made before."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from helpers.device import DEVICE, needs_device

from nnmpi.addons.cuda.table import KERNELS
from nnmpi.arrays.dtypes import named

pytestmark = needs_device


def array(*shape: int, dtype: str = "float32") -> Any:
    return DEVICE.xp.zeros(shape, named(dtype))


def like(*shapes: tuple[int, ...]) -> list[Any]:
    return [array(*shape) for shape in shapes]


def adam(rate: float) -> list[Any]:
    p, g, m, v = like(*[(100,)] * 4)
    return [p, g, m, v, None, None, 0.9, 0.99, rate, 1e-8, 0.0, 1.0, 1.0]


def losses(scale: float) -> list[Any]:
    z, loss, sums = like((6, 10), (), (2, 6))
    labels, at = array(6, dtype="int64"), array(6, dtype="int64")
    return [z, labels, scale, loss, sums, at]


def dropout(word: int) -> list[Any]:
    index, rows = array(8, dtype="uint32"), array(6, dtype="int64")
    return [index, rows, word, 2, 3, 4, 1 << 31, 2.0, array(6, 8)]


def scores(_: float) -> list[Any]:
    q, k = (array(2, 6, 3, 4).swapaxes(1, 2) for _ in range(2))
    return [q, k.swapaxes(-1, -2), array(2, 3, 6, 6), False]


CALLS: dict[str, tuple[str, Callable[[Any], list[Any]], int]] = {
    "a product": ("products_loop", lambda _: [*like((6, 8), (8, 5), (6, 5)), False], 5),
    "a product of heads": ("products_loop", scores, 5),
    "ReLU": ("relu_loop", lambda _: like((6, 8), (6, 8)), 3),
    "bias": ("bias_relu_loop", lambda _: like((6, 8), (8,), (8,)), 4),
    "Adam": ("adam_loop", adam, 3),
    "cross-entropy": ("class_losses_loop", losses, 6),
    "dropout": ("dropout_mask_loop", dropout, 5),
    "LayerNorm": (
        "layer_norm_loop",
        lambda eps: [*like((6, 8), (8,), (8,)), eps, *like((6,), (6,), (6, 8))],
        3,
    ),
    "moments, in parts": ("moments_loop", lambda _: like((1, 300, 8), (1, 8), (1, 8)), 7),
    "sums of BatchNorm": (
        "norm_sums_loop",
        lambda _: like(*[(1, 300, 8)] * 2, *[(1, 8)] * 3),
        7,
    ),
    "column sums": ("column_sum_loop", lambda _: like((6, 8), (8,)), 5),
}
"""A kernel, its arguments with a number that differs from call to call, and how many functions may
be entered."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_one_before_enters_few_functions(name: str) -> None:
    loop, args, most = CALLS[name]
    launch, (first, second) = KERNELS.loops[loop], (args(0.5), args(0.25))
    assert launch(*first) is None
    entered = list[str]()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        launch(*second)
    finally:
        sys.setprofile(None)
    assert len(entered) <= most, entered
