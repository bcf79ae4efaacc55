"""Padding layers, pixel shuffles, distances, and norms of weights, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.nn import utils

RNG = np.random.default_rng(0)
IMAGES, SEQUENCES = RNG.standard_normal((2, 8, 4, 6)), RNG.standard_normal((2, 3, 7))
PAIRS = RNG.standard_normal((2, 6, 5))
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])

LAYERS: dict[str, tuple[str, tuple[Any, ...], tuple[np.ndarray, ...]]] = {
    **{
        f"{kind}, {axes} axes, {padding}": (f"{kind}Pad{axes}d", (padding, *value), (x, x[0])[:1])
        for kind, value in (
            ("Reflection", ()),
            ("Replication", ()),
            ("Circular", ()),
            ("Zero", ()),
            ("Constant", (1.5,)),
        )
        for axes, x in ((1, SEQUENCES), (2, IMAGES))
        for padding in (2, (1, 3) if axes == 1 else (1, 3, 2, 0))
    },
    "one image": ("ZeroPad2d", ((1, -1, 0, 2),), (IMAGES[0],)),
    "pixels": ("PixelShuffle", (2,), (IMAGES,)),
    "pixels of one image": ("PixelShuffle", (2,), (IMAGES[0],)),
    "channels": ("PixelUnshuffle", (2,), (IMAGES,)),
    "cosines": ("CosineSimilarity", (), (IMAGES, IMAGES[::-1].copy())),
    "cosines along the last axis": (
        "CosineSimilarity",
        (-1, 1e-3),
        (SEQUENCES, SEQUENCES[::-1].copy()),
    ),
    "cosines of labels": ("CosineEmbeddingLoss", (0.1,), (*PAIRS, SIGNS)),
    "a ranking": ("MarginRankingLoss", (0.1,), (PAIRS[0][:, 0], PAIRS[1][:, 0], SIGNS)),
    "an axis in two": ("Unflatten", (1, (2, -1)), (IMAGES,)),
    **{
        name: (name, (), (SEQUENCES * 4,))
        for name in ("Hardsigmoid", "Hardswish", "Hardtanh", "LogSigmoid", "Mish", "ReLU6", "SELU")
    },
    "Hardtanh within": ("Hardtanh", (-0.5, 2.0), (SEQUENCES,)),
    "Softsign": ("Softsign", (), (SEQUENCES,)),
    "distances": ("PairwiseDistance", (1.0, 1e-6, True), (SEQUENCES, SEQUENCES[::-1].copy())),
}


@needs_torch
@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_pytorchs(case: str) -> None:
    name, args, values = LAYERS[case]
    rtol = 1e-7 if name == "Hardsigmoid" else 1e-10  # PyTorch's 1/6 is a float32 number

    def program(n: Any, *leaves: Any) -> Any:
        if name == "CosineEmbeddingLoss":  # whose labels have no gradient in PyTorch
            leaves = *leaves[:-1], leaves[-1].detach()
        return getattr(n.nn, name)(*args)(*leaves)

    same_as_pytorch(program, *values, rtol=rtol, atol=1e-12)


def test_a_shuffle_is_undone() -> None:
    x = nnmpi.tensor(IMAGES)
    np.testing.assert_array_equal(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x)).numpy(), IMAGES)


def test_layers_train_under_a_trainer() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(1, 8, 3), nn.PixelShuffle(2), nn.Flatten(),
            nn.Linear(2 * 8 * 8, 3),
        )  # fmt: skip

    x, y = RNG.standard_normal((24, 1, 4, 4)).astype("float32"), np.arange(24) % 3
    results = []
    for options in ({}, {"micro_batches": 2}):
        config = nnmpi.Config(epochs=2, batch_size=8, quiet=True, **options)
        with nnmpi.Trainer(config, build=build, data=(x, y)) as trainer:
            trainer.fit()
            results.append(trainer.model.state_dict())
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-4, atol=1e-6)


# ---- vectors of parameters


@needs_torch
def test_parameters_are_a_vector_and_back() -> None:
    torch = pytorch()
    ours, theirs = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    values = RNG.standard_normal(8).astype("float32")
    utils.vector_to_parameters(nnmpi.tensor(values), ours.parameters())
    torch.nn.utils.vector_to_parameters(torch.tensor(values), theirs.parameters())
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, theirs.state_dict()[name].numpy())
    vector = utils.parameters_to_vector(ours.parameters())
    np.testing.assert_array_equal(vector.numpy(), values)
    (vector * vector).sum().backward()
    np.testing.assert_allclose(np.asarray(ours.bias.grad), 2 * values[6:], rtol=1e-6)
    with refused("values of shape (7,) for 8 elements"):
        utils.vector_to_parameters(values[:7], ours.parameters())


# ---- norms of weights

NORMED: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "linear": ("Linear", (4, 3), (5, 4)),
    "convolution": ("Conv2d", (2, 3, 3), (2, 2, 5, 5)),
    "transposed": ("ConvTranspose2d", (3, 2, 2), (2, 3, 4, 4)),
}


@needs_torch
@pytest.mark.parametrize("case", NORMED)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("weight_norm", {}),
        ("weight_norm", {"dim": 1}),
        ("weight_norm", {"dim": None}),
        ("weight_norm", {"dim": -1}),
        ("spectral_norm", {}),
        ("spectral_norm", {"n_power_iterations": 3}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_norms_of_weights_train_as_pytorchs(case: str, kind: str, options: Any) -> None:
    name, args, shape = NORMED[case]

    def program(n: Any, layer: Any, x: Any) -> Any:
        opt = n.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(4):
            opt.zero_grad()
            (layer(x) ** 2).mean().backward()
            opt.step()
        layer.eval()
        return layer(x).detach(), *layer.state_dict().values()

    def make(nn: Any) -> Any:
        return getattr(nn.utils, kind)(getattr(nn, name)(*args).double(), **options)

    same_as_pytorch(program, RNG.standard_normal(shape), make=make, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_norm_is_removed(kind: str) -> None:
    layer = nn.Linear(4, 3)
    x = RNG.standard_normal((2, 4)).astype("float32")
    getattr(utils, kind)(layer)
    layer.eval()
    y = layer(x).numpy()
    with refused("Linear has no parameter 'weight'"):
        getattr(utils, kind)(layer)
    getattr(utils, f"remove_{kind}")(layer)
    assert {*layer.state_dict()} == {"weight", "bias"}
    np.testing.assert_allclose(layer(x).detach().numpy(), y, rtol=1e-5)
    with refused("Linear has no norm of 'weight' to remove"):
        getattr(utils, f"remove_{kind}")(layer)
