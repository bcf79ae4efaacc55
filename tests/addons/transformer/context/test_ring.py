"""Ring attention beside attention on one rank: values, gradients, what is computed and sent."""

from itertools import product

import numpy as np
import pytest

from nnmpi.addons.transformer.context.ring import Ring, ring_attention
from nnmpi.addons.transformer.context.sequence_cut import SequenceCut
from nnmpi.addons.transformer.kernels.attention import Keep
from nnmpi.addons.transformer.kernels.tiles import Tile
from nnmpi.addons.transformer.ops.attention import self_attention
from nnmpi.arrays.backend import Array
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

N, H, D = 3, 2, 5
SCALE = D**-0.5


def drawn(T: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Queries, keys and values of whole sequences, and the gradient of the output."""
    rng = np.random.default_rng(T)
    qkv, g = rng.standard_normal((N, T, H, 3, D)), rng.standard_normal((N, T, H, D))
    return qkv.astype(dtype), g.astype(dtype)


def dropout(T: int) -> np.ndarray:
    """What the probabilities of all queries and keys are multiplied by."""
    return np.random.default_rng(T + 1).integers(0, 2, (N, H, T, T)) * 2.0


def keep_of(masks: np.ndarray, queries: Array, keys: Array) -> Keep:
    def keep(block: Tile) -> Array:
        samples, heads, rows, columns = block
        i, j = queries[rows], keys[columns]
        return masks[samples, heads][:, :, i[:, None], j][:, :, None]

    return keep


def on_ranks(comm: Comm, T: int, causal: bool, drops: bool, dtype: str) -> tuple[Array, Array]:
    """The output and the gradient of whole sequences, from the parts of all ranks."""
    positions, (qkv, g) = SequenceCut(comm.size, T), drawn(T, dtype)
    own, masks = positions.of(comm.rank), dropout(T)
    result = ring_attention(
        qkv[:, own],
        scale=SCALE,
        causal=causal,
        keep_of=(lambda i, j: keep_of(masks, i, j)) if drops else None,
        ring=Ring(comm, positions),
    )
    found = []
    for part in (result.value, result.vjps[0](g[:, own], None)):
        whole = np.zeros((N, T, *part.shape[2:]))
        whole[:, own] = part
        comm.all_reduce(whole, "ring")  # auto would time all ways first
        found.append(whole)
    return found[0], found[1]


def on_one_rank(T: int, causal: bool, drops: bool, dtype: str) -> tuple[Array, Array]:
    qkv, g = drawn(T, dtype)
    keep = keep_of(dropout(T), np.arange(T), np.arange(T)) if drops else None
    result = self_attention(qkv, scale=SCALE, causal=causal, keep=keep)
    return result.value, result.vjps[0](g, None)


CASES = [
    (ranks, T, causal, drops)
    for ranks, causal, drops in product((1, 2, 3, 4), (True, False), (False, True))
    for T in (2 * ranks, 2 * ranks + 3, 150)  # of which one is of several blocks
]


@pytest.mark.parametrize(("ranks", "T", "causal", "drops"), CASES)
def test_the_ring_computes_what_one_rank_does(
    ranks: int, T: int, causal: bool, drops: bool
) -> None:
    wanted = on_one_rank(T, causal, drops, "float64")
    for found in threads.run(ranks, on_ranks, T, causal, drops, "float64"):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13 * abs(theirs).max())


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 3e-6), ("float16", 2e-3)])
def test_the_ring_in_few_bits(dtype: str, bound: float) -> None:
    wanted = on_one_rank(21, True, True, "float64")
    for found in threads.run(3, on_ranks, 21, True, True, dtype):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound * abs(theirs).max())


def test_a_layout_gives_the_same_bits_each_time() -> None:
    first, second = (threads.run(4, on_ranks, 37, True, True, "float32") for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
