"""Taps: each output along an axis is a weighted sum of some inputs, which are told by their places.

    y[i] = sum over taps of weight[i] * a[places[i]]

Padding that repeats the image has one tap and no weights; bilinear interpolation has two.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, of, xp_of


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
    before = (slice(None),) * axis
    d = xp_of(g).zeros((*g.shape[:axis], size, *g.shape[axis + 1 :]), g.dtype)
    for tap in taps:
        part = tap.scaled(g, axis)
        for outputs in _without_repeats(tap.places):
            here, there = (of(g).asarray(k) for k in (outputs, tap.places[outputs]))
            d[(*before, there)] += part[(*before, here)]
    return d


def _without_repeats(places: np.ndarray) -> Iterator[np.ndarray]:
    """The outputs in groups, in each of which no input comes twice."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    uses = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    for n in range(uses.max(initial=-1) + 1):
        yield order[uses == n]
