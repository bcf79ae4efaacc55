"""Ops that lengthen or shorten a tensor along some axes: padding and upsampling.

Each output along an axis is a weighted sum of a few inputs:

    y[i] = sum over taps of weight[i] * a[places[i]]

Padding with a tensor's own elements has one tap and no weights; bilinear interpolation has two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.epilogue import copied


class Tap(NamedTuple):
    """A term of an interpolation along an axis: the input and weight (None: 1) of each output."""

    places: np.ndarray
    weight: np.ndarray | None = None

    def scaled(self, a: Array, axis: int) -> Array:
        """Multiplies `a`, with one entry for each output along an axis, by the tap's weights."""
        if self.weight is None:
            return a
        return a * copied(self.weight.reshape((-1,) + (1,) * (a.ndim - axis - 1)), a.dtype, a)


def gather(a: Array, axis: int, taps: Sequence[Tap]) -> Array:
    """Interpolates along an axis: each output is the sum over taps of input times weight."""
    xp = xp_of(a)
    first, *others = (
        tap.scaled(xp.take(a, copied(tap.places, np.int64, a), axis=axis), axis) for tap in taps
    )
    for other in others:
        first += other
    return first


def scatter(g: Array, axis: int, taps: Sequence[Tap], size: int) -> Array:
    """Returns the gradient of an interpolation's inputs, of length `size` along the axis: the
    gradient g of each output, times the weights in `taps`, is added to the inputs that it takes."""
    leading = (slice(None),) * axis
    d = xp_of(g).zeros((*g.shape[:axis], size, *g.shape[axis + 1 :]), g.dtype)
    for tap in taps:
        part = tap.scaled(g, axis)
        # `d[index] += ...` adds a repeated index once only, hence the groups without repeats
        for outputs in _without_repeats(tap.places):
            sources, targets = (copied(k, np.int64, g) for k in (outputs, tap.places[outputs]))
            d[(*leading, targets)] += part[(*leading, sources)]
    return d


def _without_repeats(places: np.ndarray) -> Iterator[np.ndarray]:
    """Divides outputs among groups, within which no two take the same input, so that
    `d[places[group]] += g[group]` adds every gradient; places[i] is the input of output i."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    uses = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    for n in range(uses.max(initial=-1) + 1):
        yield order[uses == n]


Widths = Sequence[tuple[int, int]]
"""(before, after) along each axis; negative widths cut elements off."""

_LAST = (0, 2, 3, 1)


def _in_memory(a: Array, back: bool = False) -> Array:
    """Images (N, C, H, W) as (N, H, W, C), as in memory; with `back` the inverse."""
    return a if a.ndim != 4 else a.transpose((0, 3, 1, 2) if back else _LAST)


def pad(a: Array, *, widths: Widths, mode: str = "constant", value: Any = 0) -> Result:
    """`a` padded with `value`, or with copies of its own elements (`mode` "reflect", "replicate" or
    "circular"); `widths` has (before, after) for each axis, and negative widths cut off."""
    if a.ndim == 4:
        widths = [widths[k] for k in _LAST]
    x = _in_memory(a)
    ends = [(n, before, after) for n, (before, after) in zip(x.shape, widths, strict=True)]
    source = tuple(slice(max(-b, 0), n - max(-c, 0)) for n, b, c in ends)
    if any(part.stop < part.start for part in source):
        raise ValueError(f"pad: negative widths cut off more than an input of shape {a.shape} has")
    if mode != "constant":
        if mode not in PAD_MODES:
            raise ValueError(f"pad: mode {mode!r} must be one of constant, {', '.join(PAD_MODES)}")
        padded = [(k, end) for k, end in enumerate(ends) if any(end[1:])]
        return _along(a, [(k, [Tap(_index(mode, *end))], end[0]) for k, end in padded])
    inside = tuple(slice(max(b, 0), n + b + c - max(c, 0)) for n, b, c in ends)
    y = xp_of(a).full(tuple(n + b + c for n, b, c in ends), value, a.dtype)
    y[inside], shape = x[source], x.shape

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp_of(g).zeros(shape, g.dtype)
        d[source] = _in_memory(g)[inside]
        return _in_memory(d, back=True)

    return Result(_in_memory(y, back=True), (vjp,))


PAD_MODES = {"reflect": -1, "replicate": None, "circular": 0}
"""The ways to pad with a tensor's own elements, and by how much the padding may exceed the length
of the axis (None: any): mirrored without the edge, the edge repeated, or from the other end."""


def _index(mode: str, n: int, before: int, after: int) -> np.ndarray:
    """The index of the element at each place of an axis of length n, padded at both ends."""
    excess = PAD_MODES[mode]
    if not n or (excess is not None and max(before, after) > n + excess):
        raise ValueError(
            f"pad: an axis of length {n} cannot be padded by ({before}, {after}) with mode "
            f"{mode!r}; make the padding smaller, or use another mode"
        )
    places = np.arange(-before, n + after)
    if mode == "reflect":
        return np.asarray(n - 1 - np.abs(n - 1 - np.abs(places)))
    if mode == "replicate":
        return np.clip(places, 0, n - 1)
    first, stop = max(-before, 0), n - max(-after, 0)  # elements that are cut off do not repeat
    return first + (places - first) % max(stop - first, 1)


def _along(a: Array, steps: Sequence[tuple[int, Sequence[Tap], int]]) -> Result:
    """Interpolates `a` along axes in turn, given (axis in memory order, taps, length) of each."""
    y = _in_memory(a)
    for axis, taps, _ in steps:
        y = gather(y, axis, taps)

    def vjp(g: Array, out: Array | None) -> Array:
        d = _in_memory(g)
        for axis, taps, n in reversed(steps):
            d = scatter(d, axis, taps, n)
        return _in_memory(d, back=True)

    return Result(_in_memory(y, back=True), (vjp,), is_view=not steps)


def upsample2d(
    x: Array,
    *,
    size: Sequence[int] | None,
    scales: Sequence[float] | None,
    mode: str,
    align_corners: bool = False,
    recompute_scale_factor: bool = False,
) -> Result:
    """Images (N, C, H, W) resized to `size`, or by the factors `scales`: `mode` is "nearest",
    "nearest-exact" or "bilinear", and the other options are those of PyTorch's interpolate."""
    lengths = x.shape[2:]
    if size is None:
        size = [int(n * s) for n, s in zip(lengths, scales or (), strict=False)]
    if x.ndim != 4 or not is_float(x.dtype) or 0 in (*lengths, *size):
        raise ValueError(
            f"upsample2d: {x.dtype} input of shape {x.shape} to {'x'.join(map(str, size))}: the "
            "input must be floats (N, C, H, W), and H and W before and after at least 1"
        )
    real: Any = np.promote_types(x.dtype, np.float32).type
    steps = []
    for k, (n, out) in enumerate(zip(lengths, size, strict=True)):
        ratio = real(n / out if scales is None or recompute_scale_factor else 1 / scales[k])
        places = np.arange(out, dtype=real)
        if mode.startswith("nearest"):
            start = real(0.5 if mode == "nearest-exact" else 0)
            taps = [Tap(np.minimum(((places + start) * ratio).astype(np.int64), n - 1))]
        else:
            if align_corners:
                position = places * real((n - 1) / max(out - 1, 1))
            else:
                position = np.maximum((places + real(0.5)) * ratio - real(0.5), 0)
            low = np.minimum(position.astype(np.int64), n - 1)
            share = position - low
            taps = [Tap(low, 1 - share), Tap(np.minimum(low + 1, n - 1), share)]
        steps.append((1 + k, taps, n))
    return _along(x, steps)
