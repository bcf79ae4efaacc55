"""Attention as a function and as a layer, and layers of sequences."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.ops.oracle import needs_torch, same_as_pytorch
from helpers.peak import grows_linearly

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, to_host

ATTENTION = nnmpi.scaled_dot_product_attention


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_is_the_attention_of_its_heads(causal: bool) -> None:
    x = numbers(2, 5, 4 * 3 * 6)
    y = nn.SelfAttention(4, is_causal=causal)(nnmpi.tensor(x)).numpy()
    q, k, v = (x.reshape(2, 5, 4, 3, 6)[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
    wanted = ATTENTION(q, k, v, is_causal=causal).numpy()
    np.testing.assert_allclose(y, wanted.transpose(0, 2, 1, 3).reshape(2, 5, 24), rtol=1e-13)


@needs_device
@pytest.mark.parametrize("key_heads", [4, 2])
def test_a_device_computes_a_layer_as_the_host_does(key_heads: int) -> None:
    found = list[tuple[np.ndarray, np.ndarray]]()
    for on in (CPU, DEVICE):
        layer = nn.SelfAttention(4, is_causal=True, num_kv_heads=key_heads)
        given = numbers(2, 5, (4 + 2 * key_heads) * 6).astype("float32")
        x = nnmpi.tensor(given, on=on, requires_grad=True)
        y = layer(x)
        (y * y).sum().backward()
        found.append((y.numpy(), to_host(x.grad_array)))
    np.testing.assert_allclose(*(y for y, _ in found), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*(dx for _, dx in found), rtol=1e-5, atol=1e-5)


def test_dropout_keeps_the_mean_and_is_off_in_evaluation() -> None:
    layer = nn.SelfAttention(4, dropout=0.25)
    x = np.zeros((3, 80, 4, 3, 2))
    x[:, :, :, 2] = 1  # all scores and all values are equal: rows sum to 1 without dropout
    tensor = nnmpi.tensor(x.reshape(3, 80, -1))
    y = layer(tensor).numpy()
    assert abs(y.mean() - 1) < 0.01
    assert 0.05 < y.std() < 0.1  # sqrt(0.25 / 0.75 / 80) = 0.065
    np.testing.assert_allclose(layer.eval()(tensor).numpy(), 1, rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 2, 3, 5, 4)])
def test_any_number_of_leading_axes(shape: tuple[int, ...]) -> None:
    q, k, v, mask = numbers(*shape), numbers(*shape) * 2, numbers(*shape) - 1, numbers(5, 5) > 0
    same_as_pytorch(
        lambda n, q, k, v, mask: n.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=0.3
        ),
        *(q, k, v, mask),
    )


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    def run(T: int) -> None:
        q, k, v = (
            nnmpi.tensor(numbers(1, 2, T, 8), dtype="float32", requires_grad=True) for _ in "qkv"
        )
        ATTENTION(q, k, v, is_causal=True).sum().backward()

    grows_linearly(run, heads=2)


@pytest.mark.parametrize("heads", [4, 2])
def test_dropout_is_a_product_with_a_drawn_mask(heads: int) -> None:
    """The mask is that of the random tensor which is drawn, for values and gradients."""
    shapes = (3, 4, 5, 6), (3, heads, 7, 6), (3, heads, 7, 2)
    options = {"enable_gqa": heads < 4, "scale": 0.7}
    a, b = ([nnmpi.tensor(numbers(*s), requires_grad=True) for s in shapes] for _ in "ab")
    with nnmpi.seeded(5):
        y = ATTENTION(*a, dropout_p=0.4, **options)
    with nnmpi.seeded(5):
        mask = (nnmpi.rand(3, 4, 5, 7) >= 0.4).double() / 0.6
    k, v = (t.repeat_interleave(4 // heads, 1) for t in b[1:])
    expected = ((b[0] @ k.mT * 0.7).softmax(-1) * mask) @ v
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-12, atol=1e-14)
    for result in (y, expected):
        (result * result).sum().backward()
    for ours, wanted in zip(a, b, strict=True):
        np.testing.assert_allclose(ours.grad.numpy(), wanted.grad.numpy(), rtol=1e-11, atol=1e-13)
    assert 0.3 < (mask == 0).float().mean().item() < 0.5


def test_scores_of_positions_have_the_loss_of_rows() -> None:
    x, labels = numbers(3, 5, 7), np.arange(15).reshape(3, 5) % 7
    scores = nnmpi.tensor(x, requires_grad=True)
    first = nn.ChannelsFirst()(scores)
    assert first.shape == (3, 7, 5)
    loss = nn.CrossEntropyLoss()(first, labels)
    loss.backward()
    rows = nnmpi.tensor(x.reshape(15, 7), requires_grad=True)
    wanted = nn.CrossEntropyLoss()(rows, labels.reshape(-1))
    wanted.backward()
    assert loss.item() == wanted.item()
    np.testing.assert_array_equal(scores.grad.reshape(15, 7), rows.grad)
    each = nn.CrossEntropyLoss(reduction="none")(first, labels)
    assert each.shape == (3, 5)
    assert each.numpy().mean() == pytest.approx(loss.item(), rel=1e-12)


def turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """x (N, T, H, D): channels 2 i and 2 i + 1 as one complex number, times e^(i angle)."""
    D = x.shape[-1]
    angle = positions[:, None] * base ** (-2 * np.arange(D // 2) / D)
    z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
    return np.stack((z.real, z.imag), -1).reshape(x.shape)


def test_a_layer_with_rotary_positions_turns_queries_and_keys() -> None:
    x = numbers(2, 70, 3 * 3 * 4)
    q, k, v = (x.reshape(2, 70, 3, 3, 4)[:, :, :, i] for i in range(3))
    q, k = (turned(a, np.arange(70), 50.0) for a in (q, k))
    wanted = ATTENTION(*(a.transpose(0, 2, 1, 3) for a in (q, k, v)), is_causal=True).numpy()
    y = nn.SelfAttention(3, is_causal=True, rotary=50)(nnmpi.tensor(x)).numpy()
    np.testing.assert_allclose(y, wanted.transpose(0, 2, 1, 3).reshape(2, 70, 12), rtol=1e-12)
    plain = nn.SelfAttention(3, is_causal=True)(nnmpi.tensor(x)).numpy()
    assert (np.abs(y - plain)[:, 1:].max(axis=2) > 1e-3).all()


@pytest.mark.parametrize("interleaved", [True, False])
def test_scores_depend_on_differences_of_positions(interleaved: bool) -> None:
    layer = nn.RotaryPositionalEmbeddings(8, base=100.0, interleaved=interleaved)
    q, k, positions = numbers(1, 6, 2, 8), numbers(1, 6, 2, 8) + 1, np.arange(6) * 3

    def scores(shift: int) -> np.ndarray:
        a, b = (layer(x, input_pos=positions + shift).numpy() for x in (q, k))
        return np.einsum("nthd,nshd->nhts", a, b)

    np.testing.assert_allclose(scores(1000), scores(0), rtol=1e-10, atol=1e-10)
    first = np.einsum("nthd,nshd->nhts", q, k)
    assert np.abs(scores(0) - first).max() > 1
    np.testing.assert_allclose(*(np.diagonal(s, axis1=2, axis2=3) for s in (scores(0), first)))


def test_pairs_of_halves_are_those_of_neighbours_in_another_order() -> None:
    """What weights of either pairing need to be used with the other: their rows permuted."""
    x, order = numbers(2, 5, 3, 8), np.arange(8).reshape(4, 2).T.reshape(-1)
    neighbours = nn.RotaryPositionalEmbeddings(8)(x).numpy()
    halves = nn.RotaryPositionalEmbeddings(8, interleaved=False)(x[..., order]).numpy()
    np.testing.assert_allclose(halves, neighbours[..., order], rtol=1e-14)
    np.testing.assert_allclose(neighbours, turned(x, np.arange(5), 1e4), rtol=1e-12)


def test_given_positions_are_those_of_each_sample() -> None:
    layer, x = nn.RotaryPositionalEmbeddings(4, 9), numbers(2, 9, 1, 4)
    whole, at = layer(x).numpy(), np.array([[8, 2], [0, 7]])
    rows = np.take_along_axis(x, at[:, :, None, None], 1)
    found = layer(rows, input_pos=at).numpy()
    np.testing.assert_array_equal(found, np.take_along_axis(whole, at[:, :, None, None], 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_numbers_that_a_mask_adds_keep_gradients_exact(dtype: str) -> None:
    """The probabilities of a row of equal scores sum to 1, and so dv sums to dy."""
    q, k, v = (nnmpi.tensor(numbers(1, 1, 6, 4).astype(dtype), requires_grad=True) for _ in "qkv")
    mask = np.zeros((6, 6), dtype)
    mask[2] = np.finfo(dtype).min
    y = ATTENTION(q, k, v, attn_mask=mask)
    dy = np.zeros((1, 1, 6, 4), dtype)
    dy[0, 0, 2] = 1
    y.backward(dy)
    np.testing.assert_allclose(v.grad.sum(axis=2), 1, rtol=1e-6)


@pytest.mark.parametrize("hidden", [False, -np.inf, np.finfo("float32").min])
@pytest.mark.parametrize("T", [6, 300])
def test_a_causal_layer_with_padding_does_not_see_what_comes_later(hidden: float, T: int) -> None:
    """Also in rows all of whose keys are padding."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), numbers(1, T, 8).astype("float32")
    padding = np.zeros((1, T), "float32" if hidden else bool)
    padding[:, :2] = hidden or True
    options = {"is_causal": True, "key_padding_mask": padding, "need_weights": False}
    before = layer(x, x, x, **options)[0].numpy()
    x[:, 4:] += 1
    after = layer(x, x, x, **options)[0].numpy()
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any()
