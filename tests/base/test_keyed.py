"""Keyed random numbers: reproducible everywhere, and statistically sound."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import to_host

KEY = keyed.key(1, "init", "0.weight")
ROW = np.zeros(1, np.int64)
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def bits(k: keyed.Key, index, row=0) -> np.ndarray:
    """`keyed.bits` of scalars, lists or arrays."""
    return keyed.bits(k, np.atleast_1d(index), np.atleast_1d(row))


# ---- reproducibility


def test_streams_never_change():
    """Results of earlier versions depend on these numbers."""
    assert KEY == (4000825997, 980320146, 4159539574, 27621708)
    assert keyed.key() != keyed.key("") != keyed.key(0)
    assert keyed.key(0) == (2274836026, 3265220276, 3706147289, 403499790)
    assert bits(KEY, np.arange(4), np.arange(3)[:, None]).tolist() == [
        [735736838, 1737116182, 910791727, 907223240],
        [266254354, 837257554, 129198523, 3037437005],
        [1578615906, 4170984762, 1472527824, 2773550331],
    ]
    far = [2**32, 2**32 + 1, 5 * 2**32 + 7]
    assert bits(KEY, far, [0, 2**32, 3]).tolist() == [1467931362, 1636460342, 2551559792]
    assert keyed.permutation(KEY, 10).tolist() == [4, 0, 3, 2, 6, 1, 7, 5, 9, 8]
    assert keyed.uniform(KEY, np.arange(3), ROW).tolist() == [
        (word + 0.5) / 2**32 for word in (735736838, 1737116182, 910791727)
    ]
    normal = [-1.3731976873167364, 1.062794485987679, 0.5132715147579857]
    assert keyed.normal(KEY, np.arange(3), ROW) == pytest.approx(normal, rel=1e-12)


@needs_device
@pytest.mark.parametrize("draw", [keyed.bits, keyed.uniform, keyed.normal])
def test_device_and_host_draw_the_same_numbers(draw):
    index, row = np.arange(1000)[None] * 2**23, np.array([[0], [7], [2**40]])
    with waits(0):
        device = draw(KEY, DEVICE.asarray(index), DEVICE.asarray(row))
    assert type(device) is DEVICE.xp.ndarray
    host = draw(KEY, index, row)
    assert host.shape == (3, 1000)
    assert (host.dtype, device.dtype) == (np.dtype("uint32" if draw is keyed.bits else float),) * 2
    exact = draw is not keyed.normal  # which takes logarithms, and they may round elsewhere
    assert np.allclose(to_host(device), host, rtol=0 if exact else 1e-12, atol=0)


@pytest.mark.parametrize(
    "to", [np.asarray, pytest.param(DEVICE.asarray, id="device", marks=needs_device)]
)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_type_of_an_index_does_not_matter(dtype, to):
    index, row = np.arange(100), np.arange(3)[:, None]
    drawn = keyed.bits(KEY, to(index.astype(dtype)), to(row.astype(dtype)))
    assert np.array_equal(to_host(drawn), keyed.bits(KEY, index, row))
    if np.iinfo(dtype).bits >= 32:
        large = np.iinfo("int32").max - np.arange(5)
        drawn = keyed.bits(KEY, to(large.astype(dtype)), to(large.astype(dtype)))
        assert np.array_equal(to_host(drawn), keyed.bits(KEY, large, large))


def test_flat_numbers_are_those_of_the_first_row():
    """The compiled hash draws them."""
    want = keyed.uniform(KEY, np.arange(1000), ROW)
    np.testing.assert_array_equal(keyed.flat_uniform(KEY, 1000), want)


def test_index_and_row_are_not_modified():
    index, row = np.arange(10, dtype="uint32"), np.arange(10, dtype="uint32")
    keyed.normal(KEY, index, row)
    assert np.array_equal(index, np.arange(10))
    assert np.array_equal(row, np.arange(10))


def test_a_slice_of_a_tensor_draws_that_slice_of_the_whole():
    index = np.arange(6 * 8).reshape(6, 8)
    whole = keyed.normal(KEY, index, ROW)
    for part in ((slice(2, 4),), (slice(None), slice(1, None, 3)), ([5, 0, 2],), (3, 4)):
        taken = np.atleast_1d(index[part])
        assert np.array_equal(keyed.normal(KEY, taken, ROW), np.atleast_1d(whole[part]))


def test_samples_are_drawn_by_their_global_index():
    samples, index = np.arange(20), np.arange(30)
    whole = bits(KEY, index[None], samples[:, None])
    for mine in (samples[5:9], samples[::3], np.array([17, 2, 2])):
        assert np.array_equal(bits(KEY, index[None], mine[:, None]), whole[mine])


def test_every_part_of_a_key_matters():
    parts = [(1, "a"), (1, "b"), (2, "a"), ("a", 1), (1, "a", 0), (1, "a", "0"), (1, "a", "")]
    assert len({keyed.key(*p) for p in parts}) == len(parts)
    assert keyed.key("ab", "c") != keyed.key("a", "bc")
    assert keyed.key(1, "a") == keyed.key(1, "a")


# ---- beyond 32 bits


def test_indices_and_rows_beyond_32_bits_draw_other_numbers():
    low = np.arange(4096)
    for k in range(1, 34):
        high = low + (1 << (31 + k) if k < 32 else k << 32)
        assert (bits(KEY, low) == bits(KEY, high)).sum() <= 1
        assert (bits(KEY, low, low) == bits(KEY, low, high)).sum() <= 1


# ---- statistical quality

COUNT = 1 << 16
DRAWS = {
    "neighbouring indices": lambda: bits(KEY, np.arange(COUNT)),
    "neighbouring rows": lambda: bits(KEY, 0, np.arange(COUNT)),
    "a square of both": lambda: bits(KEY, np.arange(256), np.arange(256)[:, None]).ravel(),
    "every 2**16th index": lambda: bits(KEY, np.arange(COUNT) << 16),
    "indices around 2**32": lambda: bits(KEY, np.arange(COUNT) + 2**32 - COUNT // 2),
    "neighbouring keys": lambda: np.concatenate(
        [bits(keyed.key(seed, "x"), np.arange(64)) for seed in range(COUNT // 64)]
    ),
    "neighbouring last words of a key": lambda: np.concatenate(
        [bits(keyed.Key(0, 0, 0, k), np.arange(64)) for k in range(COUNT // 64)]
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_byte_is_uniform(draw):
    """Chi-square of 255 degrees of freedom: 255 and a deviation of 22.6, of which six pass."""
    words = draw()
    for shift in (0, 8, 16, 24):
        counts = np.bincount((words >> shift) & 255, minlength=256)
        chi2 = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum()
        assert abs(chi2 - 255) < 6 * 22.6, shift


NEIGHBOURS = {
    "the next index": lambda i: bits(KEY, i + 1),
    "the next row": lambda i: bits(KEY, i, 1),
    "the row 2**32 on": lambda i: bits(KEY, i, 1 << 32),
    "the index 2**32 on": lambda i: bits(KEY, i + (1 << 32)),
    "the next seed": lambda i: bits(keyed.key(2, "init", "0.weight"), i),
    "another purpose": lambda i: bits(keyed.key(1, "dropout", "0.weight"), i),
    "another layer": lambda i: bits(keyed.key(1, "init", "1.weight"), i),
    "the next k0": lambda i: bits(KEY._replace(k0=KEY.k0 + 1), i),
    "the next k1": lambda i: bits(KEY._replace(k1=KEY.k1 + 1), i),
    "the next k2": lambda i: bits(KEY._replace(k2=KEY.k2 + 1), i),
}


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbours_are_independent(other):
    index = np.arange(COUNT)
    a, b = bits(KEY, index), other(index)
    assert abs(np.corrcoef(a / 2**32, b / 2**32)[0, 1]) < 5 / COUNT**0.5
    flips = np.array([((a ^ b) >> k & 1).mean() for k in range(32)])
    assert abs(flips - 0.5).max() < 5 * 0.5 / COUNT**0.5
    assert (a == b).sum() <= 1


def test_uniforms_lie_strictly_inside():
    lowest, highest = ((word + 0.5) * 2.0**-32 for word in (0, 2**32 - 1))
    assert 0 < lowest < highest < 1
    u = keyed.uniform(KEY, np.arange(COUNT), ROW)
    assert lowest <= u.min() < 1e-3
    assert 1 - 1e-3 < u.max() <= highest
    assert abs(u.mean() - 0.5) < 5 * 12**-0.5 / COUNT**0.5


def test_normals_have_the_moments_of_normals():
    n = 1 << 18
    z = keyed.normal(KEY, np.arange(n), ROW)
    for power, moment, deviation in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 5 * (deviation / n) ** 0.5, power
    assert 4 < np.abs(z).max() < 7
    inside = [(np.abs(z) < k).mean() for k in (1, 2)]
    assert inside == pytest.approx([0.682689, 0.954500], abs=5 * 0.5 / n**0.5)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / n**0.5


# ---- permutations


@pytest.mark.parametrize("n", [0, 1, 2, 10, 1000])
def test_a_permutation_is_a_permutation(n):
    order = keyed.permutation(KEY, n)
    assert (order.dtype, order.shape) == (np.int64, (n,))
    assert np.array_equal(np.sort(order), np.arange(n))


def test_permutations_mix():
    orders = np.array([keyed.permutation(keyed.key(0, "order", e), 50) for e in range(2000)])
    for place in (0, 1, 25, 49):
        chi2 = ((np.bincount(orders[:, place], minlength=50) - 40) ** 2 / 40).sum()
        assert chi2 < 49 + 6 * 98**0.5
    assert len({o.tobytes() for o in orders}) == len(orders)
