"""Sums over rows on a device are added in one order, whatever is loaded when: to the bit."""

import numpy as np
import pytest
from helpers.device import DEVICE, emulated, needs_device, needs_emulator

from nnmpi.addons.cuda.column_sums import LANES, parts_of
from nnmpi.addons.cuda.table import KERNELS
from nnmpi.arrays import backend

pytestmark = needs_device

ROWS = (1, 7, 8, 63, 65, 200, 517, 1000)


def one_by_one(terms: np.ndarray) -> np.ndarray:
    """The sums over the first axis, each number added to the sum of those before."""
    return np.add.accumulate(terms, axis=0)[-1] if len(terms) else np.zeros(terms.shape[1:], "f4")


def summed(terms: np.ndarray) -> np.ndarray:
    """Sums over rows: lane k of part r adds rows r LANES + k, that + R LANES, ..., and sums of
    lanes are added, then sums of parts."""
    R = parts_of(len(terms))
    lanes = [one_by_one(terms[lane :: R * LANES]) for lane in range(R * LANES)]
    return one_by_one(np.stack([one_by_one(np.stack(p)) for p in np.split(np.stack(lanes), R)]))


@pytest.mark.parametrize("rows", ROWS)
def test_column_sums(rows: int) -> None:
    g = np.random.default_rng(rows).standard_normal((rows, 35)).astype("float32")
    out = DEVICE.xp.empty(35, "float32")
    assert KERNELS.loops["column_sum_loop"](DEVICE.asarray(g), out) is None
    np.testing.assert_array_equal(backend.to_host(out), summed(g))


@pytest.mark.parametrize("rows", ROWS)
def test_sums_of_batch_norm(rows: int) -> None:
    rng = np.random.default_rng(rows)
    g, x = (rng.standard_normal((1, rows, 35)).astype("float32") for _ in range(2))
    mean = rng.standard_normal((1, 35)).astype("float32")
    total, dot = (DEVICE.xp.empty((1, 35), "float32") for _ in range(2))
    arrays = map(DEVICE.asarray, (g, x, mean))
    assert KERNELS.loops["norm_sums_loop"](*arrays, total, dot) is None
    np.testing.assert_array_equal(backend.to_host(total)[0], summed(g[0]))
    np.testing.assert_array_equal(backend.to_host(dot)[0], summed(g[0] * (x[0] - mean)))


@needs_emulator
def test_the_last_block_of_any_order_joins_what_the_others_have_written() -> None:
    with emulated(races=True, shuffled=True):
        for rows in (300, 1000):
            test_column_sums(rows)
