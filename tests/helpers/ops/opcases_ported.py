"""Test cases of ops that models from elsewhere use: padding, larger images."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, label
from helpers.ops.opcases_layers import channels_last

from nnmpi.autograd import apply
from nnmpi.autograd.ops import activations, conv, pool, resample

KINKS = np.array([[-30.0, -2.0, -1e-3], [0.0, 1e-3, 40.0]])


def _activations() -> dict[str, Case]:
    cases = {}
    for alpha, a in product((1.0, 0.3), ((4, 5), KINKS)):
        kind = "" if isinstance(a, tuple) else " at its kinks"
        cases[f"elu {alpha}{kind}"] = Case(
            activations.elu,
            (a,),
            lambda t, a, alpha: t.nn.functional.elu(a, alpha),
            {"alpha": alpha},
            smooth=not kind,
        )
    for (beta, threshold), a in product(((1.0, 20.0), (2.5, 1.0), (-0.5, -2.0)), ((4, 5), KINKS)):
        cases[f"softplus {beta} {threshold} {label(np.shape(a))}"] = Case(
            activations.softplus,
            (a,),
            lambda t, a, beta, threshold: t.nn.functional.softplus(a, beta, threshold),
            {"beta": beta, "threshold": threshold},
            smooth=False,
        )
    for a, w in (((4, 5), (1,)), ((4, 5), (5,)), ((2, 3, 4, 5), (3,)), ((6,), (1,)), (KINKS, (3,))):
        cases[f"prelu {label(np.shape(a))} by {label(w)}"] = Case(
            activations.prelu,
            (a, w),
            lambda t, a, w: t.nn.functional.prelu(a, w),
            smooth=isinstance(a, tuple),
        )
    return cases


def _pads() -> dict[str, Case]:
    def oracle(t: Any, a: Any, widths: Any, mode: str = "constant", value: float = 0.0) -> Any:
        flat = [n for ends in reversed(widths) for n in ends]
        if mode == "constant":
            return t.nn.functional.pad(a, flat, mode, value)
        return t.nn.functional.pad(a, flat[: 2 * a.ndim - 4], mode)

    none, sizes = (0, 0), channels_last(2, 3, 5, 4)
    cases = {}
    for widths, value in (
        ((none, none, (1, 2), (3, 0)), 0.0),
        (((0, 1), (2, 0), none, (1, 1)), 1.5),
        ((none, none, (-1, 2), (0, -2)), -1.0),
        ((none, (-1, -1), none, none), 0.0),
    ):
        options = {"widths": widths, "value": value}
        cases[f"pad {label(widths)} {value}"] = Case(resample.pad, (sizes,), oracle, options)
    for mode, ends in product(resample.PAD_MODES, ((1, 2), (3, 0), (-1, 2))):
        image = {"widths": (none, none, (2, 1), ends), "mode": mode}
        cases[f"pad of images {mode} {ends}"] = Case(resample.pad, (sizes,), oracle, image)
        row = {"widths": (none, none, ends), "mode": mode}
        cases[f"pad of sequences {mode} {ends}"] = Case(resample.pad, ((2, 3, 4),), oracle, row)
    far = {"widths": (none, none, (7, 5)), "mode": "replicate"}
    cases["pad farther than an axis is long"] = Case(resample.pad, ((2, 3, 4),), oracle, far)
    nothing = {"widths": (none, (1, 0)), "value": 2.0}
    cases["pad of nothing"] = Case(resample.pad, ((0, 3),), oracle, nothing)
    return cases


def _max_places() -> dict[str, Case]:
    cases = {}
    windows: tuple[dict[str, Any], ...] = (
        {"kernel": 2, "stride": 2, "padding": 0},
        {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True},
        {"kernel": 3, "stride": 1, "padding": 1, "dilation": 2},
    )

    def places(t: Any, x: Any, kernel: Any, name: str, **options: Any) -> Any:
        pooled = getattr(t.nn.functional, name)
        return pooled(t.as_tensor(x), kernel, **options, return_indices=True)[1]

    equals = np.array([0.0, -np.inf, 1.0, 1.0, 0.0, 1.0])
    for x, options in product(
        (channels_last(2, 3, 7, 6), np.resize(equals, (1, 2, 7, 6))), windows
    ):
        kind = "" if callable(x) else " of equals"
        cases[f"max_pool2d_indices {label(options)}{kind}"] = Case(
            pool.max_pool_indices,
            (x,),
            lambda t, x, **o: places(t, x, name="max_pool2d", **o),
            options,
            has_gradient=False,
        )
    cases["max_pool1d_indices"] = Case(
        pool.max_pool_indices,
        ((2, 3, 9),),
        lambda t, x, axes, **o: places(t, x, name="max_pool1d", **o),
        {"axes": 1, "kernel": 3, "stride": 2, "padding": 1},
        has_gradient=False,
    )
    return cases


def _larger() -> dict[str, Case]:
    def oracle(t: Any, x: Any, size: Any, scales: Any, mode: str, align_corners: bool) -> Any:
        corners = align_corners if mode == "bilinear" else None
        return t.nn.functional.interpolate(x, size, scales, mode, corners)

    sizes = ((7, 9), None), ((3, 2), None), ((1, 5), None), (None, (2.0, 2.0)), (None, (1.7, 0.6))
    cases = {}
    for (size, scales), (mode, corners) in product(
        sizes, (("nearest", False), ("bilinear", False), ("bilinear", True))
    ):
        options = {"size": size, "scales": scales, "mode": mode, "align_corners": corners}
        cases[f"upsample2d {label(options)}"] = Case(
            resample.upsample2d, (channels_last(2, 3, 5, 4),), oracle, options
        )
    return cases


def _convolutions() -> dict[str, Case]:
    def oracle(t: Any, x: Any, w: Any, b: Any, padding_mode: str, padding: Any, **o: Any) -> Any:
        """A convolution without padding of what is padded."""
        relu, spans = (
            o.pop("relu", False),
            [d * (k - 1) for k, d in zip(w.shape[2:], ds(w, o), strict=True)],
        )
        if padding == "same":
            ends = [(n // 2, n - n // 2) for n in spans]
        else:
            ends = [(padding[k], padding[k]) if w.ndim == 4 else (padding,) * 2 for k in axes(w)]
        flat = [n for pair in reversed(ends) for n in pair]
        y = t.nn.functional.pad(x, flat, padding_mode)
        y = getattr(t.nn.functional, f"conv{w.ndim - 2}d")(y, w, b, **o)
        return y.relu() if relu else y

    def axes(w: Any) -> range:
        return range(w.ndim - 2)

    def ds(w: Any, o: Any) -> Any:
        return o["dilation"] if w.ndim == 4 else (o["dilation"],)

    cases = {}
    for mode, padding in product(resample.PAD_MODES, ((1, 2), "same")):
        options = {"padding_mode": mode, "padding": padding, "dilation": (1, 2), "groups": 2}
        cases[f"conv2d {mode} {padding}"] = Case(
            conv.after_padding,
            (channels_last(2, 4, 6, 7), (6, 2, 4, 3), (6,)),
            oracle,
            {**options, "relu": True},
            lambda op, *args, **o: _applied(op, conv.conv2d, *args, **o),
        )
        row = {"padding_mode": mode, "padding": 2 if padding != "same" else "same"}
        cases[f"conv1d {mode} {padding}"] = Case(
            conv.after_padding,
            ((2, 4, 9), (6, 4, 4), None),
            oracle,
            {**row, "dilation": 2, "groups": 1},
            lambda op, *args, **o: _applied(op, conv.conv1d, *args, **o),
        )
    return cases


def _applied(op: Any, of: Any, *args: Any, **options: Any) -> Any:
    return apply(partial(op, of), *args, **options)


PORTED = {
    **_activations(),
    **_pads(),
    **_max_places(),
    **_larger(),
    **_convolutions(),
}
