"""Layers: their shapes, their types and what they refuse."""

import copy
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device
from helpers.layer_cases import LAYERS

import nnmpi
from nnmpi import nn
from nnmpi.autograd import apply
from nnmpi.autograd.ops import elementwise


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_forward_and_back(name: str) -> None:
    make, shape, result = LAYERS[name]
    layer, x = make().train(), some(2, *shape).requires_grad_()
    y = layer(x)
    assert (y.shape, y.dtype) == ((2, *result), x.dtype)
    y.backward(np.ones(y.shape, "float32"))
    for leaf in (x, *layer.parameters()):
        assert leaf.grad.shape == leaf.shape
        assert leaf.grad.dtype == leaf.dtype


@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_arrays(name: str) -> None:
    make, shape, _ = LAYERS[name]
    x, layer = some(2, *shape).numpy(), make()
    twin = copy.deepcopy(layer)
    (y,) = map(layer, [x])
    assert type(y) is nnmpi.Tensor
    np.testing.assert_array_equal(y.numpy(), twin(nnmpi.tensor(x)).numpy())


@pytest.mark.one_in(2)
@needs_device
@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_arrays_of_a_device(name: str) -> None:
    make, shape, _ = LAYERS[name]
    there = make().to(on=DEVICE)(DEVICE.asarray(some(2, *shape).numpy()))
    assert type(there.array) is DEVICE.xp.ndarray


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_take_arrays_and_lists(reduction: str) -> None:
    scores, labels = some(2, 3).numpy(), [2, 0]
    for loss, target in (
        (nn.CrossEntropyLoss(reduction=reduction), labels),
        (nn.NLLLoss(reduction=reduction), labels),
        (nn.MSELoss(reduction=reduction), np.ones((2, 3))),
    ):
        expected = loss(nnmpi.tensor(scores), target).numpy()
        np.testing.assert_array_equal(loss(scores, target).numpy(), expected)
        np.testing.assert_allclose(loss(scores.tolist(), target).numpy(), expected, rtol=1e-6)


def test_gradients_of_two_passes_are_added() -> None:
    layer, x = nn.BatchNorm1d(3), np.arange(12, dtype="float32").reshape(4, 3) ** 2
    found = []
    for factor in (1, 2):
        layer(x).backward(factor * x)
        found.append([p.grad_array.copy() for p in layer.parameters()])
    for first, both in zip(*found, strict=True):
        np.testing.assert_array_equal(both, 3 * first)
        assert first.any()


def test_evaluation_counts_the_first_of_equal_scores() -> None:
    scores = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0], [0.0, 0.0, 1.0]])
    loss = nn.CrossEntropyLoss()
    for labels in ([1, 1, 2], np.array([1, 1, 2], np.uint8), nnmpi.tensor([1, 1, 2])):
        total, correct, count = loss.evaluate(nnmpi.tensor(scores), labels)
        assert (total, correct, count) == (loss(scores, [1, 1, 2]).item(), 2, 3)
    with refused("(3, 3)", "(2,)", "(N, C)"):
        loss.evaluate(nnmpi.tensor(scores), [1, 1])


def test_an_op_without_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"at least one tensor.*ndarray.*nnmpi\.tensor"):
        apply(elementwise.exp, np.ones(2))


def test_embedding_takes_integers_of_any_shape() -> None:
    layer = nn.Embedding(7, 3)
    for index in ([1, 2], np.zeros((2, 4), "uint8"), nnmpi.tensor([[6]]), np.zeros((0, 2), int)):
        assert layer(index).shape == (*np.shape(getattr(index, "data", index)), 3)


NORM, OF_CHANNELS = {"num_features": 0}, {"in_channels": 0, "out_channels": 0, "groups": 1}
RECURRENT = {"input_size": 1, "hidden_size": 1}
LEAST: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "Linear": ({"in_features": 0, "out_features": 0}, {}),
    "Embedding": ({"num_embeddings": 0, "embedding_dim": 0}, {}),
    "EmbeddingBag": ({"num_embeddings": 0, "embedding_dim": 0}, {}),
    "Conv1d": (OF_CHANNELS, {"kernel_size": 1}),
    "Conv2d": (OF_CHANNELS, {"kernel_size": 1}),
    "ConvTranspose2d": (OF_CHANNELS, {"kernel_size": 1}),
    "BatchNorm1d": (NORM, {}),
    "BatchNorm2d": (NORM, {}),
    "GroupNorm": ({"num_groups": 1, "num_channels": 1}, {}),
    "LayerNorm": ({"normalized_shape": 0}, {}),
    "RMSNorm": ({"normalized_shape": 0}, {}),
    "PReLU": ({"num_parameters": 1}, {}),
    "PixelShuffle": ({"upscale_factor": 1}, {}),
    "PixelUnshuffle": ({"downscale_factor": 1}, {}),
    "PositionalEmbedding": ({"num_positions": 1, "embedding_dim": 0}, {}),
    "RotaryPositionalEmbeddings": ({"dim": 1, "max_seq_len": 1}, {"dim": 2}),  # dim is even
    "SelfAttention": ({"num_heads": 1, "num_kv_heads": 1}, {}),
    "MultiheadAttention": ({"embed_dim": 1, "num_heads": 1, "kdim": 1, "vdim": 1}, {}),
    "TransformerEncoderLayer": ({"dim_feedforward": 1}, {"d_model": 2, "nhead": 1}),
    "MixtureOfExperts": ({"width": 1, "hidden": 1, "num_experts": 1, "top_k": 1}, {}),
    **{name: (RECURRENT | {"num_layers": 1}, {}) for name in ("RNN", "LSTM", "GRU")},
    **{name: (RECURRENT, {}) for name in ("RNNCell", "LSTMCell", "GRUCell")},
}
"""By layer, the least of each of its sizes, and what else it is made with."""


@pytest.mark.parametrize("layer", [name for name in LEAST if hasattr(nn, name)])
def test_sizes_below_the_least_are_refused(layer: str) -> None:
    least, others = LEAST[layer]
    make = getattr(nn, layer)
    make(**least | others)
    for name, size in least.items():
        for given in (size - 1, size + 0.5):
            with refused(f"{layer}: {name}={given} must be an integer, at least {size}"):
                make(**least | others | {name: given})


HALVES = (
    lambda: nn.GroupNorm(2, 6),
    lambda: nn.BatchNorm1d(6),
    nn.SiLU,
    nn.LeakyReLU,
    lambda: nn.Softmax(1),
    lambda: nn.LayerNorm(4, elementwise_affine=False),
)


def test_new_layers_in_float16() -> None:
    for make in HALVES:
        both = []
        for dtype in ("float16", "float64"):
            layer, x = make().to(dtype), some(5, 6, 4, dtype=dtype)
            x.requires_grad = True
            y = layer(x)
            y.backward(np.cos(np.arange(y.size)).reshape(y.shape).astype(dtype))
            assert y.dtype == x.grad.dtype == dtype
            both.append((y.numpy(), x.grad))
        for half, double in zip(*both, strict=True):
            np.testing.assert_allclose(half, double, atol=0.01 * np.abs(double).max())


def test_statistics_of_the_batch_alone_are_for_no_trainer() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))

    with refused("1 (BatchNorm1d)", "track_running_stats=False", "GroupNorm"):
        nnmpi.Trainer(nnmpi.Config(), build, (np.ones((8, 4)), np.arange(8) % 3))


def test_batch_norm_takes_one_image_but_not_one_number() -> None:
    layer = nn.BatchNorm2d(3)
    assert layer(np.ones((1, 3, 2, 1), np.float32)).shape == (1, 3, 2, 1)
    assert layer.num_batches_tracked.item() == 1
    with pytest.raises(ValueError, match="BatchNorm2d"):
        layer(np.ones((1, 3, 1, 1), np.float32))
    assert layer.num_batches_tracked.item() == 1
