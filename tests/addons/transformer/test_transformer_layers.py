"""MultiheadAttention and encoder layers against PyTorch, in float64."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn

N, T, S, E, H = 3, 5, 4, 6, 2
Options = dict[str, Any]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def later(T: int, S: int) -> np.ndarray:
    """True where a key is behind a query."""
    return np.arange(S) > np.arange(T)[:, None]


HIDDEN = np.array([[False] * 4, [False, True, False, True], [False, False, False, True]])
ADDED = np.where(numbers(N * H, T, S) < -1, -np.inf, numbers(N * H, T, S))
ADDED[:, :, 0] = 0.3  # each query sees a key
MASKS: dict[str, Options] = {
    "no mask": {},
    "padding": {"key_padding_mask": HIDDEN},
    "padding, numbers": {"key_padding_mask": numbers(N, S)},
    "bools": {"attn_mask": later(T, S)},
    "bools of each head": {"attn_mask": (numbers(N * H, T, S) > 1) & (np.arange(S) > 0)},
    "numbers": {"attn_mask": numbers(T, S)},
    "numbers of each head": {"attn_mask": ADDED},
    "padding and bools": {"key_padding_mask": HIDDEN, "attn_mask": later(T, S)},
    "padding and numbers": {"key_padding_mask": np.where(HIDDEN, -np.inf, 0.0), "attn_mask": ADDED},
    "causal": {"attn_mask": later(T, S), "is_causal": True},
    "causal and padding": {"key_padding_mask": HIDDEN, "attn_mask": later(T, S), "is_causal": True},
}


def compare(
    make: Callable[[Any], Any], inputs: list[np.ndarray], options: Options, repeats: int = 0
) -> None:
    """Compares layers that get the last input `repeats` times more, and options with masks."""

    def call(n: Any, layer: Any, *x: Any) -> Any:
        given = {k: n.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        found = layer(*x, *[x[-1]] * repeats, **given)
        return [y for y in found if y is not None] if isinstance(found, tuple) else found

    same_as_pytorch(call, *inputs, make=make, rtol=1e-11, atol=1e-12)


@needs_torch
@pytest.mark.parametrize("weights", ["none", "mean", "each head"])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_attention_of_others_is_pytorchs(masks: Options, weights: str) -> None:
    options = {"need_weights": weights != "none", "average_attn_weights": weights == "mean"}
    inputs = [numbers(T, N, E), numbers(S, N, E), numbers(S, N, E, seed=1)]
    compare(lambda nn: nn.MultiheadAttention(E, H, 0.0), inputs, masks | options)


@needs_torch
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_forms_of_attention_are_pytorchs(bias: bool, batch_first: bool, need_weights: bool) -> None:
    """Self-attention, a memory that gives keys and values, and those of other widths."""
    q, k, wide, narrow = (
        numbers(*s, N, w) for s, w in (((T,), E), ((S,), E), ((S,), 7), ((S,), 3))
    )
    for inputs, repeats, widths in (
        ([q], 2, {}),
        ([q, k], 1, {}),
        ([q, wide], 1, {"kdim": 7, "vdim": 7}),
        ([q, wide, narrow], 0, {"kdim": 7, "vdim": 3}),
        ([q, k, narrow], 0, {"vdim": 3}),
    ):
        made: Options = {"bias": bias, "batch_first": batch_first, **widths}
        turned = [x.swapaxes(0, 1) if batch_first else x for x in inputs]
        compare(
            lambda nn, made=made: nn.MultiheadAttention(E, H, **made),
            *(turned, {"need_weights": need_weights}, repeats),
        )


def test_a_query_that_sees_no_key_gets_the_bias() -> None:
    """PyTorch's is not a number. Padding may hide all of a sample."""
    layer = nn.MultiheadAttention(E, H, batch_first=True).to(np.float64)
    layer.out_proj.bias.data[...] = 0.5
    x = nnmpi.tensor(numbers(N, T, E), requires_grad=True)
    hidden = np.arange(N)[:, None] == np.ones(T)
    for need_weights in (False, True):
        y, weights = layer(x, x, x, key_padding_mask=hidden, need_weights=need_weights)
        assert (y.numpy()[1] == 0.5).all()
        assert (y.numpy()[::2] != 0.5).any()
        y.sum().backward()
        assert np.isfinite(x.grad).all()
    assert weights is not None
    np.testing.assert_allclose(weights.numpy().sum(-1), [[1] * T, [0] * T, [1] * T], rtol=1e-12)


def test_causal_attention_needs_no_mask() -> None:
    layer, x = (
        nn.MultiheadAttention(E, H, batch_first=True),
        nnmpi.tensor(numbers(N, 70, E, seed=1)),
    )
    layer.to(np.float64)
    found = [
        layer(x, x, x, need_weights=needed, is_causal=causal, attn_mask=mask)[0].numpy()
        for needed in (False, True)
        for causal, mask in ((True, None), (False, later(70, 70)), (True, later(70, 70)))
    ]
    for y in found[1:]:
        np.testing.assert_allclose(y, found[0], rtol=1e-12)


def test_initial_weights_are_drawn_as_in_pytorch() -> None:
    layer, bound = nn.MultiheadAttention(32, 4), np.sqrt(6 / (4 * 32))
    for name, p in nn.MultiheadAttention(32, 4, kdim=8).named_parameters():
        if name == "k_proj_weight":
            assert 0.9 * np.sqrt(6 / 40) < np.abs(p.data).max() < np.sqrt(6 / 40)
    weight = layer.in_proj_weight.data
    assert 0.97 * bound < np.abs(weight).max() < bound
    assert abs(weight.std() * np.sqrt(3) / bound - 1) < 0.05
    assert not layer.in_proj_bias.data.any()
    assert not layer.out_proj.bias.data.any()
    assert 0.97 < np.abs(layer.out_proj.weight.data).max() * np.sqrt(32) < 1


def test_dropout_is_the_same_whether_weights_are_needed_or_not() -> None:
    """And a sample has its own masks, whatever is beside it."""
    layer = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True).to(np.float64)
    x = nnmpi.tensor(numbers(2, 150, 8))
    first, probabilities = layer(x, x, x, average_attn_weights=False)
    layer.passes = 0
    second, _ = layer(x, x, x, need_weights=False)
    np.testing.assert_allclose(first.numpy(), second.numpy(), rtol=1e-10, atol=1e-12)
    assert abs((probabilities.numpy() == 0).mean() - 0.3) < 0.01
    layer.passes = 0
    alone = nnmpi.tensor(x.numpy()[:1])
    np.testing.assert_allclose(layer(alone, alone, alone)[0].numpy(), first.numpy()[:1], rtol=1e-10)
    other, _ = layer(alone, alone, alone)
    assert (other.numpy() != first.numpy()[:1]).all()
    layer.eval()
    np.testing.assert_allclose(layer(x, x, x)[1].numpy().sum(-1), 1, rtol=1e-12)


FORMS: dict[str, Options] = {
    "norms behind": {},
    "norms first": {"norm_first": True, "layer_norm_eps": 1e-3},
    "gelu, without biases": {"activation": "gelu", "bias": False},
    "a function": {},
}
CALLS: dict[str, Options] = {
    "whole": {},
    "causal": {"src_mask": later(T, T), "is_causal": True},
    "masked": {"src_mask": numbers(T, T)},
    "padded": {"src_key_padding_mask": np.arange(T) >= np.array([[5], [2], [4]])},
}


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", FORMS)
def test_an_encoder_layer_is_pytorchs(name: str, call: Options, batch_first: bool) -> None:
    made = {"batch_first": batch_first, "dropout": 0.0, **FORMS[name]}

    def make(nn: Any) -> Any:
        silu = {"activation": nn.functional.silu} if name == "a function" else {}
        return nn.TransformerEncoderLayer(E, H, 7, **made, **silu)

    compare(make, [numbers(N, T, E) if batch_first else numbers(T, N, E)], call)


@needs_torch
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_an_encoder_is_pytorchs() -> None:
    def make(nn: Any) -> Any:
        layer = nn.TransformerEncoderLayer(E, H, 7, 0.0)
        return nn.TransformerEncoder(layer, 3, nn.LayerNorm(E))

    compare(make, [numbers(T, N, E)], {"mask": later(T, T), "is_causal": True})


def test_the_layers_of_an_encoder_start_with_weights_of_their_own() -> None:
    """Drawn from the seed of the model; weights that are there already are copied."""
    layer = nn.TransformerEncoderLayer(E, H, 7)
    layer.linear2.weight = nn.Parameter(np.full((E, 7), 3.0))
    layer.norm1.requires_grad_(False)
    found = []
    for seed in (1, 2):
        encoder = nn.TransformerEncoder(layer, 2)
        encoder.seed = seed
        found += [m.linear1.weight.array for m in encoder.layers]
        assert all((m.linear2.weight.data == 3).all() for m in encoder.layers)
        assert not any(m.norm1.weight.requires_grad for m in encoder.layers)
    assert len({array.tobytes() for array in found}) == 4
    names = [name for name, _ in encoder.named_parameters()]
    assert names[:2] == ["layers.0.self_attn.in_proj_weight", "layers.0.self_attn.in_proj_bias"]


def test_an_encoder_is_copied_and_pickled() -> None:
    x, activations = nnmpi.tensor(numbers(N, T, E)), ("relu", "gelu", nn.GELU("tanh"))
    for activation in activations:
        layer = nn.TransformerEncoderLayer(E, H, 7, 0.0, activation, batch_first=True)
        encoder = nn.TransformerEncoder(layer.to(np.float64), 2)
        for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
            np.testing.assert_array_equal(twin(x).numpy(), encoder(x).numpy())
