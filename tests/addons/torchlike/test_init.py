"""Weights come from the seed, the path and the index of each element, and from nothing else."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device

import nnmpi
from nnmpi import nn
from nnmpi.arrays import keyed
from nnmpi.nn.models import MODELS

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "first": lambda: nn.Linear(6, 4),
    "second": lambda: nn.Linear(6, 4),
    "conv": lambda: nn.Conv2d(3, 4, 3),
    "rows": lambda: nn.Embedding(5, 4),
    "deep": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 4)),
}


def model(order: list[str], seed: int = 0) -> nn.Module:
    """The same layers under the same names, built in this order."""
    m = nn.Module()
    m.seed = seed
    for name in order:
        setattr(m, name, LAYERS[name]())
    return m


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_the_order_of_building_and_looking_does_not_matter() -> None:
    straight, reverse = model(list(LAYERS)), model(list(LAYERS)[::-1])
    assert list(straight.state_dict()) != list(reverse.state_dict())
    same(straight.state_dict(), reverse.state_dict())
    touched = model(list(LAYERS))
    for p in reversed([*touched.parameters()]):
        assert not p.is_drawn
        assert p.array.any()
    same(touched.state_dict(), straight.state_dict())
    flat = model(list(LAYERS))
    nnmpi.optim.SGD([*flat.parameters()][::-1], lr=0.1)
    same(flat.state_dict(), straight.state_dict())


def test_a_parameter_with_given_values_keeps_them() -> None:
    m = nn.Module()
    m.own = nn.Parameter(np.arange(3.0))
    m.seed = 5
    assert m.to(np.float32).own.array.tolist() == [0, 1, 2]


def three_layers(seed: int, looked_at: list[int]) -> list[bytes]:
    """The weights of three layers that stand alone."""
    with nnmpi.seeded(seed):
        layers = [nn.Linear(4, 4) for _ in range(3)]
    for i in looked_at:
        assert layers[i].bias.array.any()
    return [layer.weight.array.tobytes() for layer in layers]


def test_layers_that_stand_alone_differ() -> None:
    """Whatever they are used in, and in whatever order."""
    weights = three_layers(0, [0, 1, 2])
    assert len({*weights, *three_layers(1, [0])}) == 6
    assert three_layers(0, [2, 1, 0]) == weights
    assert nn.Linear(4, 4).weight.array.tobytes() != nn.Linear(4, 4).weight.array.tobytes()


def test_a_weight_that_was_changed_keeps_its_values_in_a_model() -> None:
    layers = [nn.Linear(4, 4) for _ in range(2)]
    for layer in layers:
        layer.weight.array *= 10
    changed = [layer.weight.array.copy() for layer in layers]
    m = nn.Sequential(nn.Linear(4, 4), *layers).to(np.float32)
    for p, values in zip((m[1].weight, m[2].weight), changed, strict=True):
        np.testing.assert_array_equal(p.array, values)
    untouched = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    np.testing.assert_array_equal(m[0].weight.array, untouched[0].weight.array)
    np.testing.assert_array_equal(m[1].bias.array, untouched[1].bias.array)


def test_a_seed_in_force_is_that_of_models_constructed_within_it() -> None:
    with nnmpi.seeded(7):
        m = model(list(LAYERS), nn.Module().seed)
        inner = nn.Sequential(nn.Linear(2, 2))
        with nnmpi.seeded(8):
            assert nn.Module().seed == 8
    assert (m.seed, inner.seed, nn.Module().seed) == (7, 7, 0)
    same(m.state_dict(), model(list(LAYERS), 7).state_dict())


def use(m: nn.Module) -> None:
    m(nnmpi.tensor(np.ones((1, 2), "float32")))


TOO_LATE: dict[str, Callable[[nn.Module], Any]] = {
    "read": lambda m: m[0].bias.array,
    "used": use,
    "changed": lambda m: m[0].bias.array.fill(0),
    "moved": lambda m: m.to(np.float64),
}


@pytest.mark.parametrize("touch", TOO_LATE.values(), ids=TOO_LATE)
def test_a_seed_that_comes_too_late_is_refused(touch: Callable[[nn.Module], Any]) -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    m.seed = 3
    touch(m)
    m.seed = 3
    for drawn in (m, copy.deepcopy(m)):
        with refused("Sequential.seed = 7", "0.", "seed 3", "nnmpi.seeded(7)"):
            drawn.seed = 7
        assert drawn.seed == 3


def test_a_model_with_given_values_may_have_another_seed() -> None:
    """Dropout depends on it."""
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    m.load_state_dict(m.state_dict())
    m.seed = 1
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    opt = nnmpi.optim.SGD(m.parameters(), lr=0.1)
    m(nnmpi.tensor(np.ones((1, 2), "float32"))).sum().backward()
    opt.step()
    m.seed = 2
    m[0].weight.array = np.zeros((2, 2))
    m.seed = 3
    assert m.seed == 3


@pytest.mark.parametrize("name", MODELS)
def test_types_agree_to_rounding(name: str) -> None:
    """Every type is rounded from the same float64, whoever asks first."""
    single, double = MODELS[name](), MODELS[name]().to(np.float64)
    for p, q in zip(single.parameters(), double.parameters(), strict=True):
        assert (p.array.dtype, q.array.dtype) == ("float32", "float64")
        np.testing.assert_array_equal(p.array, q.array.astype("float32"))
    weight = next(double.parameters()).array
    assert (weight != weight.astype("float32")).any()


@needs_device
def test_other_backends_hold_the_same_bits() -> None:
    there = model(list(LAYERS)).to(np.float32, DEVICE)
    assert {type(p.array) for p in there.parameters()} == {DEVICE.xp.ndarray}
    same(there.state_dict(), model(list(LAYERS)).state_dict())


UNIFORM: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "Linear": (lambda: nn.Linear(10, 4), 1 / np.sqrt(10)),
    "Conv2d": (lambda: nn.Conv2d(16, 4, 3), 1 / 12),
    "Conv2d, groups": (lambda: nn.Conv2d(64, 32, 3, groups=16), 1 / 6),
    "Conv1d": (lambda: nn.Conv1d(16, 4, 4), 1 / 8),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(400, 64, 3, groups=4), 1 / 12),
    "Conv2d 1x1": (lambda: nn.Conv2d(64, 4, 1), 1 / 8),
    "LSTM": (lambda: nn.LSTM(5, 25, 2), 1 / 5),
}


@pytest.mark.parametrize("case", UNIFORM.values(), ids=UNIFORM)
def test_weights_and_biases_are_uniform_within_the_root_of_fan_in(case: Any) -> None:
    """As in PyTorch."""
    make, bound = case
    layer = make()
    layer.seed = 3
    for path, p in layer.named_parameters():
        u = keyed.uniform(keyed.key(3, "init", path), np.arange(p.size), np.zeros(1, int))
        np.testing.assert_allclose(p.array.ravel(), bound * (2 * u - 1), rtol=1e-6, atol=1e-7)


def test_embeddings_are_standard_normal() -> None:
    layer = nn.Embedding(400, 100)
    layer.seed = 3
    z = keyed.normal(keyed.key(3, "init", "weight"), np.arange(40_000), np.zeros(1, int))
    np.testing.assert_allclose(layer.weight.array.ravel(), z, rtol=1e-6)


def test_a_slice_is_drawn_by_its_indices() -> None:
    """Whoever owns a part of a tensor draws that part, by its places in the whole."""
    m = model(list(LAYERS), seed=3)
    for path, p in m.named_parameters():
        index = np.arange(p.size).reshape(p.shape)
        for part in (np.s_[1:3], np.s_[..., ::2], np.s_[-1]):
            drawn = p.init(keyed.key(3, "init", path), index[part])
            np.testing.assert_array_equal(drawn.astype("float32"), p.array[part], err_msg=path)


SIZES = {
    "iris-mlp": ((4,), 3, [4 * 50 + 50, 50 * 3 + 3]),
    "digits-cnn": ((1, 8, 8), 10, [9 * 32, 64, 9 * 32 * 64, 128, 256 * 10 + 10]),
    "mnist-cnn": (
        (1, 28, 28),
        10,
        [9 * 32 + 32, 9 * 32 * 64 + 64, 3136 * 128 + 128, 128 * 64 + 64, 64 * 10 + 10],
    ),
    "cifar-cnn": (
        (3, 32, 32),
        10,
        [27 * 64 + 64, 576 * 128 + 128, 1152 * 256 + 256, 4096 * 256 + 256, 256 * 10 + 10],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_their_sizes_and_train(name: str) -> None:
    image, classes, sizes = SIZES[name]
    m = MODELS[name]()
    assert sum(p.size for p in m.parameters()) == sum(sizes)
    assert not any(p.is_drawn for p in m.parameters())
    scores = m(nnmpi.tensor(np.ones((2, *image), "float32")))
    assert scores.shape == (2, classes)
    nn.CrossEntropyLoss()(scores, [0, 1]).backward()
    for parameter in m.parameters():
        assert np.isfinite(parameter.grad_array).all()
        assert parameter.grad_array.any()


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3), (4, 2, 3, 3)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(np.empty(shape, "float64"))
    assert nn.init.orthogonal_(weight, gain=2.0) is weight
    matrix = weight.numpy().reshape(shape[0], -1)
    few = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(few @ few.T, 4 * np.eye(len(few)), atol=1e-12)


def test_orthogonal_values_of_a_part_are_those_of_the_whole() -> None:
    init, key = nn.init.orthogonal(6, 4, 1.0), keyed.key(0, "init", "a")
    whole = init(key, np.arange(24))
    np.testing.assert_array_equal(init(key, np.arange(8, 16)), whole[8:16])
