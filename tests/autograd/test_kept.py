"""The memory that a block of a transformer keeps for its backward pass."""

import gc
import tracemalloc

import numpy as np
import pytest
from helpers.in_pass import in_pass
from helpers.saved_memory import nbytes, saved_memory

from nnmpi import nn
from nnmpi.addons.language.models.gpt import GPT
from nnmpi.addons.language.models.llama import Llama, LlamaSizes
from nnmpi.arrays.dtypes import named
from nnmpi.autograd import Tensor
from nnmpi.nn.single_store import SingleStore

# ---- models


def tokens(n: int) -> np.ndarray:
    return np.arange(n * 16).reshape(n, 16) % 32


def held(model: nn.Module, x: np.ndarray, dtype: str) -> tuple[int, int]:
    """Bytes after a forward pass: as measured, and those of what vjps read and of the output."""
    for p in model.parameters():
        p.move(SingleStore(p.array.astype(named(dtype))), 0)
    given = Tensor(x if x.dtype.kind == "i" else x.astype(named(dtype)))
    with in_pass(0, np.arange(len(x))):
        model(given)  # what layers make once
        gc.collect()
        tracemalloc.start()
        try:
            y = model(given)
            gc.collect()
            measured = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    memory = saved_memory([y])
    own = {id(m): m for m in memory.values() if m is not given.array}
    whole = y.array if y.array.base is None else y.array.base
    return measured, nbytes((own | {id(whole): whole}).values())


@pytest.mark.parametrize(("dtype", "numbers"), [("float32", 64), ("float16", 32)])
def test_a_block_of_gpt_keeps_what_is_stated(dtype: str, numbers: int) -> None:
    """Bytes over s b h (benchmarks/measured/sixteen-bits.md); statistics of rows come on top."""
    n, s, h, heads = 4, 16, 64, 4
    one, two = (held(GPT(layers, heads, h, 32, s), tokens(n), dtype)[1] for layers in (1, 2))
    rows = n * s * (2 * 2 + heads) * 4  # of both norms, and the log of each sum of attention
    assert two - one == n * s * h * numbers + rows


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_a_block_of_llama_keeps_what_its_products_read(dtype: str, width: int) -> None:
    """The input and output of both norms, rotated queries, keys and values, what attention returns,
    and of the MLP gates, ups and their products: no angles, and no slopes."""
    n, s, h, heads, kv_heads, f = 4, 16, 64, 4, 2, 192
    sizes = (LlamaSizes(layers, heads, h, 32, s, kv_heads, f) for layers in (1, 2))
    one, two = (held(Llama(of), tokens(n), dtype)[1] for of in sizes)
    rows = n * s * (2 + heads) * 4  # of both norms, and the log of each sum of attention
    kept = 4 * h + (h + 2 * kv_heads * (h // heads)) + h + 3 * f
    assert two - one == n * s * kept * width + rows
