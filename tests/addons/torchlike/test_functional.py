"""nnmpi.nn.functional against torch.nn.functional, in float64: values, gradients, signatures."""

import inspect
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch, same_as_pytorch

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 6, 6))  # images
W = RNG.standard_normal((6, 4, 3, 3)) / 6
S, V = X[:, :, 0], W[..., 0]  # sequences, and their kernels
ROWS, M, B = X[:, 0, 0], RNG.standard_normal((5, 6)), RNG.standard_normal(5)
LABELS, INDEX = np.array([1, 5, 0]), np.array([[0, 4], [2, 2]])
P = 1 / (1 + np.exp(-ROWS))
ROLLED = np.roll(P, 1, axis=0)
Y = (RNG.random((3, 6)) > 0.5).astype("float64")

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "relu": (lambda F, x: F.relu(x), (X,)),
    "silu": (lambda F, x: F.silu(x), (X,)),
    "gelu": (lambda F, x: F.gelu(x, approximate="tanh"), (X,)),
    "sigmoid": (lambda F, x: F.sigmoid(x), (X,)),
    "tanh": (lambda F, x: F.tanh(x), (X,)),
    "leaky_relu": (lambda F, x: F.leaky_relu(x, 0.2), (X,)),
    "elu": (lambda F, x: F.elu(x, 0.5), (X,)),
    "softplus": (lambda F, x: F.softplus(x, 2, 1), (X,)),
    **{
        name: (lambda F, x, name=name: getattr(F, name)(x), (4 * S,))
        for name in (
            *("hardsigmoid", "hardswish", "hardtanh", "logsigmoid", "mish", "relu6", "selu"),
            "softsign",
        )
    },
    "prelu": (lambda F, x, w: F.prelu(x, w), (X, B[:4])),
    "softmax": (lambda F, x: F.softmax(x, 1), (S,)),
    "log_softmax": (lambda F, x: F.log_softmax(x, dim=0), (S,)),
    "dropout": (lambda F, x: F.dropout(x, training=False) + F.dropout(x, 0.0), (X,)),
    "linear": (lambda F, x, w, b: F.linear(x, w, b), (ROWS, M, B)),
    "linear, no bias": (lambda F, x, w: F.linear(x, w), (S, M)),
    "conv1d": (lambda F, x, w: F.conv1d(x, w, None, 2, (1,)), (S, V)),
    "conv2d": (lambda F, x, w, b: F.conv2d(x, w, b, (1, 2), "valid"), (X, W, ROWS[0])),
    "conv2d, groups": (lambda F, x, w: F.conv2d(x, w, padding=1, groups=2), (X, W[:, :2])),
    "embedding": (lambda F, w: F.embedding(like(F, INDEX), w, padding_idx=2), (M,)),
    "layer_norm": (lambda F, x, w, b: F.layer_norm(x, (6,), w, b), (X, ROWS[0], ROWS[1])),
    "rms_norm": (lambda F, x, w: F.rms_norm(x, (6,), w), (X, ROWS[0])),
    "group_norm": (lambda F, x, w: F.group_norm(x, 2, w), (X, B[:4])),
    "max_pool1d": (lambda F, x: F.max_pool1d(x, 2, 1), (S,)),
    "max_pool2d": (lambda F, x: F.max_pool2d(x, 2), (X,)),
    "max_pool2d, ceil": (lambda F, x: F.max_pool2d(x, 4, None, 0, 1, True), (X,)),
    "avg_pool1d": (lambda F, x: F.avg_pool1d(x, 3, padding=1), (S,)),
    "avg_pool2d": (lambda F, x: F.avg_pool2d(x, 3, 2, 1, False, False), (X,)),
    "adaptive_avg_pool2d": (lambda F, x: F.adaptive_avg_pool2d(x, (2, None)), (X,)),
    "interpolate": (lambda F, x: F.interpolate(x, scale_factor=2, mode="bilinear"), (X,)),
    "pad": (lambda F, x: F.pad(x, (1, 2), value=3.0), (X,)),
    "attention": (lambda F, q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (X,)),
    "normalize": (lambda F, x: F.normalize(x), (X,)),
    "normalize, 3": (lambda F, x: F.normalize(x, p=3, dim=-1), (ROWS,)),
    "normalize, largest": (lambda F, x: F.normalize(x, p=float("inf"), dim=0), (ROWS,)),
    "normalize, zeros": (lambda F, x: F.normalize(x) + 1, (0 * ROWS,)),
    "cosine_similarity": (lambda F, a, b: F.cosine_similarity(a, b), (X, W[:1, :, :1, :1])),
    "pairwise_distance": (lambda F, a, b: F.pairwise_distance(a, b), (ROWS, P)),
    "pairwise_distance, 1": (lambda F, a, b: F.pairwise_distance(a, b, 1, 0.0, True), (ROWS, P)),
    "triplet_margin_loss": (lambda F, a, b, c: F.triplet_margin_loss(a, b, c), (ROWS, P, ROLLED)),
    "triplet_margin_loss, swap": (
        lambda F, a, b, c: F.triplet_margin_loss(a, b, c, 9, swap=True, reduction="none"),
        (ROWS, P, ROLLED),
    ),
    "kl_div": (lambda F, x: F.kl_div(x, like(F, Y), reduction="batchmean"), (ROWS,)),
    "kl_div, targets": (lambda F, x, y: F.kl_div(x, y, reduction="sum"), (ROWS, P)),
    "kl_div, logs": (lambda F, x, y: F.kl_div(x, y, log_target=True, reduction="sum"), (ROWS, P)),
    "cross_entropy": (lambda F, x: F.cross_entropy(x, like(F, LABELS)), (ROWS,)),
    "cross_entropy, options": (
        lambda F, x: F.cross_entropy(
            x, like(F, LABELS), like(F, P[0]), ignore_index=5, label_smoothing=0.1, reduction="sum"
        ),
        (ROWS,),
    ),
    "nll_loss": (lambda F, x: F.nll_loss(x, like(F, LABELS), reduction="none"), (ROWS,)),
    "mse_loss": (lambda F, x: F.mse_loss(x, like(F, Y)), (ROWS,)),
    "l1_loss": (lambda F, x: F.l1_loss(x, like(F, Y)), (ROWS,)),
    "smooth_l1_loss": (lambda F, x: F.smooth_l1_loss(x, like(F, Y), beta=0.5), (ROWS,)),
    "huber_loss": (lambda F, x: F.huber_loss(x, like(F, Y), delta=0.5), (ROWS,)),
    "binary_cross_entropy": (lambda F, x: F.binary_cross_entropy(x, like(F, Y)), (P,)),
    "binary_cross_entropy_with_logits": (
        lambda F, x: F.binary_cross_entropy_with_logits(x, like(F, Y), pos_weight=like(F, P[0])),
        (ROWS,),
    ),
}


def like(functional: Any, array: np.ndarray) -> Any:
    """A tensor of the library that the functions are of."""
    return nnmpi.tensor(array) if functional is F else pytorch().tensor(array)


def test_every_function_is_compared() -> None:
    public = {name for name, f in vars(F).items() if inspect.isfunction(f) and name[0] != "_"}
    public |= {*F._ON_USE}
    helpers = {"apply", "as_tensor", "as_tensors", "check_probability", "drawn_mask"}
    helpers |= {"function_of", "padding_row", "row_numbers", "of_one_call"}
    called = {name.split(",")[0] for name in CASES} | {"one_hot", "scaled_dot_product_attention"}
    assert public - helpers <= called


def test_distances_of_two_types_are_in_the_wider_one() -> None:
    a, b = nnmpi.tensor(ROWS.astype("float32")).bfloat16(), nnmpi.tensor(P.astype("float32"))
    for function in (F.cosine_similarity, F.pairwise_distance):
        exact = function(a.double(), b.double()).numpy()
        for y in (function(a, b), function(b, a)):
            assert y.dtype == "float32"
            np.testing.assert_allclose(y.numpy(), exact, rtol=1e-4, atol=1e-5)


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    call, arrays = CASES[name]
    rtol = 1e-7 if name == "hardsigmoid" else 1e-9  # PyTorch's 1/6 is a float32 number
    same_as_pytorch(lambda n, *x: call(n.nn.functional, *x), *arrays, rtol=rtol, atol=1e-11)


@needs_torch
def test_arguments_have_pytorchs_places_and_defaults() -> None:
    theirs = pytorch().nn.functional
    compared = 0
    for name in F.__all__:
        function = getattr(F, name)
        try:
            expected = inspect.signature(getattr(theirs, name)).parameters
        except (AttributeError, TypeError, ValueError):  # no function of both; or written in C++
            continue
        if "input" not in expected:  # *args of two functions
            continue
        compared += 1
        for i, (key, p) in enumerate(inspect.signature(function).parameters.items()):
            assert key in expected, (name, key)
            assert p.default == expected[key].default, (name, key)
            if p.kind is p.POSITIONAL_OR_KEYWORD:
                assert [*expected].index(key) == i, (name, key)
    assert compared > 30


def test_one_hot() -> None:
    assert F.one_hot(nnmpi.tensor([[1], [0]]), 3).numpy().tolist() == [[[0, 1, 0]], [[1, 0, 0]]]
    y = F.one_hot(np.array([0, 2]))
    assert (y.dtype, y.shape) == ("int64", (2, 3))


def test_manual_seed_is_seeded_from_there_on() -> None:
    def weights() -> list[np.ndarray]:
        nnmpi.manual_seed(7)
        return [nn.Linear(2, 3).weight.numpy(), nn.Linear(2, 3).weight.numpy()]

    found = copy_context().run(weights)
    with nnmpi.seeded(7):
        expected = [nn.Linear(2, 3).weight.numpy(), nn.Linear(2, 3).weight.numpy()]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(*found)


def test_a_call_changes_no_later_weights() -> None:
    weights = []
    for call in (lambda x: x, F.gelu, lambda x: F.mse_loss(x, x), lambda x: F.max_pool1d(x, 2)):
        with nnmpi.seeded(0):
            call(nnmpi.ones(1, 1, 4))
            weights.append(nn.Linear(2, 2).weight.tolist())
    assert weights == weights[:1] * 4


def test_arguments_that_do_not_fit_raise_type_errors() -> None:
    x = nnmpi.ones(2, 3)
    for call, said in (
        (lambda: F.mse_loss(x), "'target'"),
        (lambda: F.mse_loss(x, x, input=x), "'input'"),
        (lambda: F.mse_loss(x, x, reductoin="sum"), "'reductoin'"),
        (lambda: F.mse_loss(x, x, size_average=False), "write reduction="),
    ):
        with pytest.raises(TypeError, match=said):
            call()
