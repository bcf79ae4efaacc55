"""Ops that make a tensor longer or shorter along some axes: padding, and larger images.

Each output along an axis is a weighted sum of some inputs, which are told by their places:

    y[i] = sum over taps of weight[i] * a[places[i]]

Padding that repeats the image has one tap and no weights; bilinear interpolation has two.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result


class Tap(NamedTuple):
    """An input of each output, and what it counts; 1 if there are no weights."""

    places: np.ndarray
    weight: np.ndarray | None = None

    def scaled(self, a: Array, axis: int) -> Array:
        """`a`, as long along the axis as the places, times the weights."""
        if self.weight is None:
            return a
        return a * of(a).asarray(self.weight.reshape((-1,) + (1,) * (a.ndim - axis - 1)), a.dtype)


def gather(a: Array, axis: int, taps: Sequence[Tap]) -> Array:
    """The outputs along an axis."""
    xp, on = xp_of(a), of(a)
    first, *others = (
        tap.scaled(xp.take(a, on.asarray(tap.places), axis=axis), axis) for tap in taps
    )
    for other in others:
        first += other
    return first


def scatter(g: Array, axis: int, taps: Sequence[Tap], size: int) -> Array:
    """The gradient of the inputs, `size` along the axis, from that of the outputs."""
    leading = (slice(None),) * axis
    d = xp_of(g).zeros((*g.shape[:axis], size, *g.shape[axis + 1 :]), g.dtype)
    for tap in taps:
        part = tap.scaled(g, axis)
        for outputs in _without_repeats(tap.places):
            here, targets = (of(g).asarray(k) for k in (outputs, tap.places[outputs]))
            d[(*leading, targets)] += part[(*leading, here)]
    return d


def _without_repeats(places: np.ndarray) -> Iterator[np.ndarray]:
    """The outputs in groups, in each of which no input comes twice."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    uses = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    for n in range(uses.max(initial=-1) + 1):
        yield order[uses == n]


Widths = Sequence[tuple[int, int]]
"""(before, after) along each axis; less than 0 cuts off."""

_LAST = (0, 2, 3, 1)


def _in_memory(a: Array, back: bool = False) -> Array:
    """Images (N, C, H, W) as (N, H, W, C), as they lie in memory, or back; others as they are."""
    return a if a.ndim != 4 else a.transpose((0, 3, 1, 2) if back else _LAST)


def pad(a: Array, *, widths: Widths, mode: str = "constant", value: Any = 0) -> Result:
    """`a` made longer: by a value, or by its own elements as `PAD_MODES` says."""
    if a.ndim == 4:
        widths = [widths[k] for k in _LAST]
    x = _in_memory(a)
    ends = [(n, before, after) for n, (before, after) in zip(x.shape, widths, strict=True)]
    taken = tuple(slice(max(-b, 0), n - max(-c, 0)) for n, b, c in ends)
    if any(part.stop < part.start for part in taken):
        raise ValueError(f"pad: an input of shape {a.shape} is too small for what is cut off it")
    if mode != "constant":
        if mode not in PAD_MODES:
            raise ValueError(f"pad: mode {mode!r} is none of constant, {', '.join(PAD_MODES)}")
        padded = [(k, end) for k, end in enumerate(ends) if any(end[1:])]
        return _along(a, [(k, [Tap(_index(mode, *end))], end[0]) for k, end in padded])
    inside = tuple(slice(max(b, 0), n + b + c - max(c, 0)) for n, b, c in ends)
    y = xp_of(a).full(tuple(n + b + c for n, b, c in ends), value, a.dtype)
    y[inside], before = x[taken], x.shape

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp_of(g).zeros(before, g.dtype)
        d[taken] = _in_memory(g)[inside]
        return _in_memory(d, back=True)

    return Result(_in_memory(y, back=True), (vjp,))


PAD_MODES = {"reflect": -1, "replicate": None, "circular": 0}
"""Ways to pad with the elements at the ends, and how much longer than an axis the padding may be:
mirrored without the last one, the last one repeated, those from the other end."""


def _index(mode: str, n: int, before: int, after: int) -> np.ndarray:
    """The element of an axis of length n at each place of the padded one."""
    more = PAD_MODES[mode]
    if not n or (more is not None and max(before, after) > n + more):
        raise ValueError(
            f"pad: an axis of length {n} cannot be padded by ({before}, {after}) with mode "
            f"{mode!r}; make the padding smaller, or use another mode"
        )
    places = np.arange(-before, n + after)
    if mode == "reflect":
        return np.asarray(n - 1 - np.abs(n - 1 - np.abs(places)))
    if mode == "replicate":
        return np.clip(places, 0, n - 1)
    first, stop = max(-before, 0), n - max(-after, 0)  # what is cut off is not repeated
    return first + (places - first) % max(stop - first, 1)


def _along(a: Array, steps: Sequence[tuple[int, Sequence[Tap], int]]) -> Result:
    """`a` taken along some axes, as it lies in memory: (axis, taps, its length) each."""
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
    """Images (N, C, H, W) in a size, or so many times as large: nearest pixels or bilinearly."""
    lengths = x.shape[2:]
    if size is None:
        size = [int(n * s) for n, s in zip(lengths, scales or (), strict=False)]
    if x.ndim != 4 or not is_float(x.dtype) or 0 in (*lengths, *size):
        raise ValueError(
            f"upsample2d: {x.dtype} input of shape {x.shape} to {'x'.join(map(str, size))}: the "
            "input must be floats (N, C, H, W), and H and W before and after at least 1"
        )
    kind: Any = np.promote_types(x.dtype, np.float32).type
    steps = []
    for k, (n, out) in enumerate(zip(lengths, size, strict=True)):
        ratio = kind(n / out if scales is None or recompute_scale_factor else 1 / scales[k])
        places = np.arange(out, dtype=kind)
        if mode.startswith("nearest"):
            start = kind(0.5 if mode == "nearest-exact" else 0)
            taps = [Tap(np.minimum(((places + start) * ratio).astype(np.int64), n - 1))]
        else:
            if align_corners:
                at = places * kind((n - 1) / max(out - 1, 1))
            else:
                at = np.maximum((places + kind(0.5)) * ratio - kind(0.5), 0)
            low = np.minimum(at.astype(np.int64), n - 1)
            share = at - low
            taps = [Tap(low, 1 - share), Tap(np.minimum(low + 1, n - 1), share)]
        steps.append((1 + k, taps, n))
    return _along(x, steps)
