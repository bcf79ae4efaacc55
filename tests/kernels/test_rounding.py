"""Compiled casts to 16 bits: every tie, and what lies beside it."""

import ml_dtypes  # noqa: F401 - adds bfloat16 to NumPy
import numpy as np
import pytest

from nnmpi.arrays import native
from nnmpi.arrays.dtypes import HALVES

MODULES = dict(native.modules())


def near_ties(dtype: str) -> np.ndarray:
    """All finite numbers of a type, the middles between neighbours, which are numbers of float32,
    and their neighbours there; infinities, NaN, and numbers that become infinite."""
    every = np.arange(1 << 16, dtype="u2").view(dtype).astype("float32")
    finite = np.unique(every[np.isfinite(every)])
    middles = ((finite[1:].astype("f8") + finite[:-1]) / 2).astype("float32")
    beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([every, middles, *beside, np.float32([3.4e38, -3.4e38, 65519, 65520])])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", MODULES)
def test_casts_round_to_nearest_and_ties_to_even(kind: str, dtype: str) -> None:
    """And take denormal numbers as they are, in stretches of any length."""
    x = near_ties(dtype)
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype)
    for first, n in [(0, len(x)), *((17 * n, n) for n in range(1, 50))]:
        found = np.empty(n, dtype)
        assert MODULES[kind].cast_loop(x[first : first + n], found) is None
        is_number = ~np.isnan(x[first : first + n])
        here = wanted[first : first + n]
        assert (found.view("u2") == here.view("u2"))[is_number].all()
        assert np.isnan(found.astype("float32"))[~is_number].all()
