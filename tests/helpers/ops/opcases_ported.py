"""Test cases of ops that models from elsewhere use: padding, larger images."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle, label, of_torch
from helpers.ops.opcases_layers import channels_last

from nnmpi.autograd import apply
from nnmpi.autograd.ops import activations, conv, pool, resample

KINKS = np.array([[-30.0, -2.0, -1e-3], [0.0, 1e-3, 40.0]])


def _activations() -> dict[str, Case]:
    cases, oracle = {}, of_torch("nn.functional.elu")
    for alpha, a in product((1.0, 0.3), ((4, 5), KINKS)):
        kind = "" if isinstance(a, tuple) else " at its kinks"
        cases[f"elu {alpha}{kind}"] = Case(
            activations.elu, (a,), oracle, {"alpha": alpha}, smooth=not kind
        )
    oracle = of_torch("nn.functional.softplus")
    for (beta, threshold), a in product(((1.0, 20.0), (2.5, 1.0), (-0.5, -2.0)), ((4, 5), KINKS)):
        options = {"beta": beta, "threshold": threshold}
        cases[f"softplus {beta} {threshold} {label(np.shape(a))}"] = Case(
            activations.softplus, (a,), oracle, options, smooth=False
        )
    oracle = of_torch("nn.functional.prelu")
    for a, w in (((4, 5), (1,)), ((4, 5), (5,)), ((2, 3, 4, 5), (3,)), ((6,), (1,)), (KINKS, (3,))):
        name, smooth = f"prelu {label(np.shape(a))} by {label(w)}", isinstance(a, tuple)
        cases[name] = Case(activations.prelu, (a, w), oracle, smooth=smooth)
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

    def places(name: str) -> Oracle:
        def oracle(t: Any, x: Any, kernel: Any, axes: int = 2, **options: Any) -> Any:
            pooled = getattr(t.nn.functional, name)
            return pooled(t.as_tensor(x), kernel, **options, return_indices=True)[1]

        return oracle

    equals = np.resize([0.0, -np.inf, 1.0, 1.0, 0.0, 1.0], (1, 2, 7, 6))
    op = pool.max_pool_indices
    for x, options in product((channels_last(2, 3, 7, 6), equals), windows):
        name = f"max_pool2d_indices {label(options)}{'' if callable(x) else ' of equals'}"
        cases[name] = Case(op, (x,), places("max_pool2d"), options)
    row = {"axes": 1, "kernel": 3, "stride": 2, "padding": 1}
    cases["max_pool1d_indices"] = Case(op, ((2, 3, 9),), places("max_pool1d"), row)
    return {name: case._replace(has_gradient=False) for name, case in cases.items()}


def _larger() -> dict[str, Case]:
    def oracle(t: Any, x: Any, size: Any, scales: Any, mode: str, align_corners: bool) -> Any:
        corners = align_corners if mode == "bilinear" else None
        return t.nn.functional.interpolate(x, size, scales, mode, corners)

    sizes = ((7, 9), None), ((3, 2), None), ((1, 5), None), (None, (2.0, 2.0)), (None, (1.7, 0.6))
    modes = ("nearest", False), ("bilinear", False), ("bilinear", True)
    cases, args = {}, (channels_last(2, 3, 5, 4),)
    for (size, scales), (mode, corners) in product(sizes, modes):
        options = {"size": size, "scales": scales, "mode": mode, "align_corners": corners}
        cases[f"upsample2d {label(options)}"] = Case(resample.upsample2d, args, oracle, options)
    return cases


def _convolutions() -> dict[str, Case]:
    def oracle(t: Any, x: Any, w: Any, b: Any, padding_mode: str, padding: Any, **o: Any) -> Any:
        """A convolution without padding of what is padded."""
        relu, n = o.pop("relu", False), w.ndim - 2
        spans = (np.array(w.shape[2:]) - 1) * o["dilation"]
        before, after = (
            (spans // 2, spans - spans // 2) if padding == "same" else (padding, padding)
        )
        ends = np.broadcast_to(np.transpose([before, after]), (n, 2))
        y = t.nn.functional.pad(x, ends[::-1].ravel().tolist(), padding_mode)
        y = getattr(t.nn.functional, f"conv{n}d")(y, w, b, **o)
        return y.relu() if relu else y

    def applied(of: Any) -> Any:
        return lambda op, *args, **options: apply(partial(op, of), *args, **options)

    op, cases = conv.after_padding, {}
    images, rows = (channels_last(2, 4, 6, 7), (6, 2, 4, 3), (6,)), ((2, 4, 9), (6, 4, 4), None)
    for mode, padding in product(resample.PAD_MODES, ((1, 2), "same")):
        options = {"padding_mode": mode, "padding": padding, "dilation": (1, 2), "groups": 2}
        name, run = f"conv2d {mode} {padding}", applied(conv.conv2d)
        cases[name] = Case(op, images, oracle, {**options, "relu": True}, run)
        options |= {"padding": 2 if padding != "same" else "same", "dilation": 2, "groups": 1}
        name, run = f"conv1d {mode} {padding}", applied(conv.conv1d)
        cases[name] = Case(op, rows, oracle, options, run)
    return cases


PORTED = {
    **_activations(),
    **_pads(),
    **_max_places(),
    **_larger(),
    **_convolutions(),
}
