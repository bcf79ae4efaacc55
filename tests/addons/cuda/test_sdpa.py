"""Attention in 16 bits on a device: by a fake of cuDNN or by cuDNN, else by products."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.kernels import fakecudnn
from helpers.training.transformer_models import Decoder

import nnmpi
from nnmpi import nn, optim
from nnmpi.addons.transformer.ops import attention
from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import named

pytestmark = needs_device
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
BOUND = {"float16": 1e-3, "bfloat16": 8e-3}
BOTH = ["sdpa", "sdpa_backward"]


def drawn(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(named(dtype)) for shape in shapes]


def computed(op: Any, arrays: list[np.ndarray], on: backend.Backend) -> list[np.ndarray]:
    """The value and the gradients of an op; the last array is that of the value."""
    *given, g = (on.asarray(a) for a in arrays)
    result = op(*given)
    shared = g if result.prepare is None else result.prepare(g, [True] * len(given))
    found = [result.value, *(vjp(shared, None) for vjp in result.vjps)]
    return [backend.to_host(a) for a in found]


def agree(op: Any, arrays: list[np.ndarray]) -> None:
    """Values and gradients on the device are those in float64, but for roundings."""
    dtype = arrays[0].dtype
    exact = computed(op, [a.astype("float64") for a in arrays], backend.CPU)
    for a, b in zip(computed(op, arrays, DEVICE), exact, strict=True):
        assert a.dtype == dtype
        error = np.linalg.norm(a.astype("float64") - b)
        assert error < BOUND[dtype.name] * np.linalg.norm(b)


@HALVES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 70, 3, 3, 16), (2, 2, 2, 3, 8)])
def test_packed_heads_are_read_where_they_lie(
    fake: fakecudnn.Fake | None, shape: tuple[int, ...], causal: bool, dtype: str
) -> None:
    N, T, H, _, D = shape
    op = partial(attention.self_attention, scale=0.3, causal=causal)
    agree(op, drawn(dtype, shape, (N, T, H, D)))
    if fake is not None:
        assert fake.executed == BOTH
        q, k, v, *_ = fake.graphs[0].tensors
        assert q.stride == k.stride == v.stride == [T * H * 3 * D, 3 * D, H * 3 * D, 1]


@HALVES
@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_queries_share_keys_of_other_lengths(
    fake: fakecudnn.Fake | None, causal: bool, dtype: str
) -> None:
    shapes = (2, 6, 20, 16), (2, 2, 33, 16), (2, 2, 33, 24), (2, 6, 20, 24)
    agree(partial(attention.attention, scale=0.25, causal=causal), drawn(dtype, *shapes))
    if fake is not None:
        assert fake.executed == BOTH


def padding(N: int, T: int) -> np.ndarray:
    """A mask of keys: the last ones of each sample are hidden."""
    return np.arange(T) < np.arange(T - N, T)[:, None, None, None]


OTHERS: dict[str, tuple[int, int, str]] = {
    "one query": (1, 16, "plain"),
    "sizes that cuDNN does not take": (20, 6, "plain"),
    "a mask": (20, 16, "mask"),
    "dropout": (20, 16, "keep"),
}


@HALVES
@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_takes_products(fake: fakecudnn.Fake | None, name: str, dtype: str) -> None:
    T, D, what = OTHERS[name]

    def op(q: Any, k: Any, v: Any) -> Any:
        options: dict[str, Any] = {"scale": 0.25, "causal": what != "mask" and T > 1}
        if what == "mask":
            options["mask"] = backend.of(q).asarray(padding(2, 20))
        if what == "keep":
            options["keep"] = lambda tile: backend.of(q).asarray(np.array(1.5, q.dtype))
        return attention.attention(q, k, v, **options)

    shapes = (2, 2, T, D), (2, 2, 20, D), (2, 2, 20, D), (2, 2, T, D)
    agree(op, drawn(dtype, *shapes))
    if fake is not None:
        assert fake.executed == []


@pytest.mark.parametrize("lacks", BOTH)
def test_either_pass_may_lack_an_engine(fake: fakecudnn.Fake | None, lacks: str) -> None:
    if fake is None:
        pytest.skip("only the fake lacks engines")
    fake.unsupported.add(lacks)
    op = partial(attention.self_attention, scale=0.3, causal=True)
    agree(op, drawn("float16", (2, 40, 3, 3, 16), (2, 40, 3, 16)))
    assert fake.executed == [kind for kind in BOTH if kind != lacks]


def test_float32_and_parts_of_arrays_take_products(fake: fakecudnn.Fake | None) -> None:
    whole, g = drawn("float16", (2, 10, 1, 3, 9), (2, 10, 1, 8))
    op = partial(attention.self_attention, scale=0.3, causal=True)
    computed(op, [whole[..., 1:].astype("float32"), g.astype("float32")], DEVICE)
    apart = DEVICE.asarray(whole)[..., 1:]
    found = backend.to_host(op(apart).value).astype("float64")
    exact = op(whole[..., 1:].astype("float64")).value
    assert np.linalg.norm(found - exact) < BOUND["float16"] * np.linalg.norm(exact)
    if fake is not None:
        assert fake.executed == []


@HALVES
@pytest.mark.parametrize("name", ["decoder", "gpt"])
def test_a_transformer_takes_it_in_each_block(
    fake: fakecudnn.Fake | None, name: str, dtype: str
) -> None:
    made = Decoder(50, 12, 2, 2, 32, 0) if name == "decoder" else nn.GPT(2, 2, 32, 50, 12)
    model = made.to(dtype, DEVICE)
    opt, rng = optim.SGD(model.parameters(), 0.1), np.random.default_rng(0)
    x, y = rng.integers(0, 50, (2, 3, 12))
    losses = []
    for _ in range(3):
        loss = nn.CrossEntropyLoss()(model(nnmpi.tensor(x, on=DEVICE)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    if fake is not None:
        assert fake.executed == [BOTH[0], BOTH[0], BOTH[1], BOTH[1]] * 3
        assert len(fake.graphs) == 2
