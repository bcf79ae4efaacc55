"""Test cases of ops: convolutions with all options, transposed ones, and pools."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from helpers.ops.opcases import Case, label, of_torch
from helpers.ops.opcases_layers import channels_last, convolved, pooled

from nnmpi.autograd.ops import conv, pool

GROUPS = ((1, 3, 4), (2, 6, 4), (3, 15, 6), (4, 4, 4), (4, 4, 8), (1, 6, 2))
"""Groups, channels in and out: dense, few and many channels a group, depthwise, with multiples."""

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"stride": (2, 1), "padding": (0, 3)},
    {"stride": (1, 3), "padding": (2, 1), "dilation": (2, 1)},
    {"padding": "same", "dilation": (1, 2)},
    {"padding": "valid", "dilation": 2},
)
KERNELS = ((3, 2), (2, 3), (1, 4))


def _every_other(groups: Sequence[Any], options: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Half of the pairs, with each of both among them."""
    for (i, group), (k, option) in product(enumerate(groups), enumerate(options)):
        if (i + k) % 2 == 0:
            yield group, option


def _convolutions() -> dict[str, Case]:
    cases = {}
    ways: tuple[dict[str, Any], ...] = ({}, {"relu": True}, {"relu": True, "pool": True})
    for i, ((g, C, O), options) in enumerate(_every_other(GROUPS, OPTIONS)):
        kernel, named = KERNELS[i % 3], {"groups": g, **options, **ways[i % 3]}
        args = channels_last(2, C, 9, 8), (O, C // g, *kernel), (O,) if i % 2 else None
        name = f"conv2d {C}->{O} k{label(kernel)} {label(named)}"
        cases[name] = Case(conv.conv2d, args, convolved, named)
    for g, C, O in GROUPS:
        name, args = f"conv2d of no images, {g} groups {C}->{O}", ((O, C // g, 3, 3), (O,))
        cases[name] = Case(conv.conv2d, ((0, C, 5, 5), *args), convolved, {"groups": g})
    args, large = ((2, 2, 3, 2), (3, 2, 7, 5), (3,)), {"padding": (3, 2)}
    name = "conv2d, a kernel larger than the images"
    cases[name] = Case(conv.conv2d, args, convolved, large)
    return cases


def _sequences() -> dict[str, Case]:
    def oracle(t: Any, x: Any, w: Any, b: Any, **options: Any) -> Any:
        return t.nn.functional.conv1d(x, w, b, **options)

    cases = {}
    ways = ({}, {"stride": 3, "padding": 2}, {"padding": "same", "dilation": 3})
    for (g, C, O), options in _every_other(GROUPS, ways):
        cases[f"conv1d {g} groups {C}->{O} {label(options)}"] = Case(
            conv.conv1d, ((2, C, 11), (O, C // g, 4), (O,)), oracle, {"groups": g, **options}
        )
    cases["conv1d of no sequences"] = Case(conv.conv1d, ((0, 2, 5), (3, 2, 2), None), oracle)
    return cases


def _transposed() -> dict[str, Case]:
    def oracle(t: Any, x: Any, w: Any, b: Any, **options: Any) -> Any:
        return t.nn.functional.conv_transpose2d(x, w, b, **options)

    ways: tuple[dict[str, Any], ...] = (
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (3, 1), "padding": (0, 2), "output_padding": (2, 0), "dilation": (1, 2)},
        {"dilation": 3, "output_padding": 2, "padding": 1},
    )
    cases = {}
    for i, ((g, C, O), options) in enumerate(_every_other(GROUPS, ways)):
        kernel = KERNELS[i % 3]
        cases[f"conv_transpose2d {g} groups {C}->{O} k{label(kernel)} {label(options)}"] = Case(
            conv.conv_transpose2d,
            (channels_last(2, C, 4, 5), (C, O // g, *kernel), (O,) if i % 3 else None),
            oracle,
            {"groups": g, **options},
        )
    cases["conv_transpose2d of no images"] = Case(
        conv.conv_transpose2d, ((0, 3, 4, 5), (3, 2, 2, 2), (2,)), oracle, {"stride": 2}
    )
    return cases


def _pools() -> dict[str, Case]:
    cases = {}
    kinds: tuple[tuple[Any, str, tuple[Any, ...]], ...] = (
        (pool.max_pool, "dilation", (1, (1, 2))),
        (pool.avg_pool, "count_include_pad", (True, False)),
    )
    windows: tuple[dict[str, Any], ...] = (
        {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)},
        {"kernel": (1, 4), "stride": (3, 3), "padding": (0, 2)},
        {"kernel": (4, 5), "stride": 2, "padding": 2},
    )
    for window, ceil_mode, n in product(windows, (False, True), (2, 0)):
        options, x = {**window, "ceil_mode": ceil_mode}, channels_last(n, 3, 8, 6)
        for op, option, values in kinds:
            for value in values:
                name, named = f"{op.__name__}2d", {**options, option: value}
                cases[f"{name} {n} {label(named)}"] = Case(op, (x,), pooled(name), named)
    for window, ceil_mode in product(((3, 2, 1), (2, 3, 0), (4, 1, 2)), (False, True)):
        kernel, stride, padding = window
        options = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        for op, more in ((pool.max_pool, {"dilation": 2}), (pool.avg_pool, {})):
            name, named, args = f"{op.__name__}1d", options | more, ((2, 3, 9),)
            cases[f"{name} {label(named)}"] = Case(op, args, pooled(name), {**named, "axes": 1})
    oracle = of_torch("nn.functional.adaptive_avg_pool2d")
    for size in ((1, 1), (4, 3), (3, 5), (8, None), (None, 1), (11, 2), (2, 9)):
        x, name = channels_last(2, 3, 8, 1 if 9 in size else 7), f"adaptive_avg_pool2d {size}"
        cases[name] = Case(pool.adaptive_avg_pool2d, (x,), oracle, {"size": size})
    return cases


CONVOLUTIONS = _convolutions() | _sequences() | _transposed() | _pools()
