"""Checks the optimizer update of a run on several ranks against that of an optimizer on one
rank."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, to_host
from nnmpi.arrays.dtypes import types_of
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.state import assign
from nnmpi.nn.store import FlatStore, values_of
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec


class Difference(NamedTuple):
    """The largest difference of two arrays: absolute, relative, in last places."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0


def difference(a: np.ndarray, b: np.ndarray, scale: float | None = None) -> Difference:
    """Returns the largest difference of two arrays, relative to `scale` or else to the largest
    value of b. NaN equals NaN, and an infinity the same infinity; other values differ infinitely
    from them."""
    if not a.size:
        return Difference()
    gap = np.abs(a - b)
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.where(np.isnan(gap), np.inf, gap))
    absolute = float(gap.max())
    if scale is None:
        scale = scale_of(b)
    ulps = np.where(gap > 0, gap / np.spacing(np.maximum(np.abs(a), np.abs(b))), 0)
    ulps = np.where(np.isnan(ulps), np.inf, ulps)
    relative = 0.0 if absolute == 0 else (absolute / scale if scale else math.inf)
    return Difference(absolute, relative, float(ulps.max()))


def scale_of(b: np.ndarray) -> float:
    """Returns the largest absolute value among the finite elements of an array."""
    return float(np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0))


def largest(differences: Iterable[Difference]) -> Difference:
    """Returns the maximum of each measure; a NaN counts as the largest."""
    return Difference(*np.max([Difference(), *differences], axis=0).tolist())


BOUND = 1e-6
"""The largest accepted difference, relative to the largest value of a parameter: a few roundings of
float32, the dtype in which the optimizer updates parameters or their masters."""


class ReferenceUpdate:
    """A copy of the parameters that this rank has a part of, with an optimizer of its own, which
    repeats each update for comparison: from equal parameters and gradients it computes equal
    results. Gradients are already clipped. If parameters have 16 bits, the copy has the float32
    masters."""

    def __init__(self, spec: TrainSpec) -> None:
        self.layout, self._lr_factor = spec.parameters, spec.control.lr_factor
        self._own = [p.copied(_as_masters(values_of(p))) for p in self.layout]
        self._by_path = {p.place.path: k for k, p in enumerate(self.layout)}
        first = self._own[0].array
        FlatStore(self._own, first.dtype, backend.of(first))
        self.optimizer = spec.optimizer(self._own)

    def copy_parameter(self, name: str, values: np.ndarray) -> None:
        """Copies this rank's part of a parameter from the whole tensor, if it is one."""
        k = self._by_path.get(name)
        if k is not None:
            assign(self._own[k], values[self.layout[k].place.slices])

    def follow(self, step: int, updated: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Repeats the update of step number `step`, if it was made; yields, for each parameter,
        (its values in the run, the values that the copy has)."""
        for copied, p in zip(self._own, self.layout, strict=True):
            copied.grad_array = summed_gradient(p) if p.has_grad else None
        if updated:
            self.optimizer.step(lr_factor=self._lr_factor(step))
        for copied, p in zip(self._own, self.layout, strict=True):
            values, expected = to_host(values_of(p)), to_host(copied.array)
            if types_of(values.dtype).is_mixed:
                yield _masters(p, expected)
                values = _unrounded(values, expected)
            yield values, expected


def _masters(p: Parameter, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (the float32 masters of a 16-bit parameter, their expected values), flat in memory
    order; those that other ranks update count as expected."""
    rows = memory_order(p, expected)
    masters = rows.copy()
    if isinstance(p.store, FlatStore):
        for lo, hi in p.store.readable(p.index):
            masters[lo:hi] = to_host(p.store.elements(p.index, lo, hi))
    return masters, rows


def _unrounded(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns float32 values for 16-bit `values`: the expected value where it rounds to the 16-bit
    one, so that rounding is no difference. Expected values may be off by 1e-6 of the largest."""
    off = BOUND * scale_of(expected)
    low, high = ((expected + way * off).astype(values.dtype) for way in (-1, 1))
    return np.where((low <= values) & (values <= high), expected, _as_masters(values))


def summed_gradient(p: Parameter) -> Array:
    """Returns the summed gradient of p. The ranks along dp call it for all parameters in the same
    order."""
    if isinstance(p.store, LocalStore):
        return p.store.whole_gradient(p.index)
    return p.grad_memory


def _as_masters(values: Array) -> Array:
    return values.astype(types_of(values.dtype).masters, copy=False)
