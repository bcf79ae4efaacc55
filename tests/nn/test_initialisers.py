"""nn.init: PyTorch's distributions, keyed by seed, path and index in the whole tensor."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays import keyed
from nnmpi.nn import init

SHAPE = (60, 40, 3, 3)  # fan_in 360, fan_out 540
UNIFORM: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "uniform": (init.uniform_, 0, 1),
    "uniform, within": (lambda t: init.uniform_(t, -1, 3), -1, 3),
    "xavier": (init.xavier_uniform_, -np.sqrt(6 / 900), np.sqrt(6 / 900)),
    "xavier, gain": (lambda t: init.xavier_uniform_(t, 2.0), -np.sqrt(24 / 900), np.sqrt(24 / 900)),
    "kaiming": (init.kaiming_uniform_, -np.sqrt(6 / 360), np.sqrt(6 / 360)),
    "kaiming, PyTorch's linear": (
        lambda t: init.kaiming_uniform_(t, a=np.sqrt(5)),
        *(-np.sqrt(1 / 360), np.sqrt(1 / 360)),
    ),
}
NORMAL: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "normal": (init.normal_, 0, 1),
    "normal, elsewhere": (lambda t: init.normal_(t, 3, 0.5), 3, 0.5),
    "xavier": (init.xavier_normal_, 0, np.sqrt(2 / 900)),
    "kaiming": (
        lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
        *(0, np.sqrt(2 / 540)),
    ),
}


def drawn(make: Callable[[Any], Any]) -> np.ndarray:
    m = nn.Module()
    m.own, m.seed = nn.Parameter(np.empty(SHAPE)), 3
    assert make(m.own) is m.own
    assert m.own.dtype == "float64"
    values: np.ndarray = m.own.data.ravel()
    return values


def keyed_numbers(draw: Callable[..., np.ndarray]) -> np.ndarray:
    """Those that nothing but the seed and the path say."""
    return draw(keyed.key(3, "init", "own"), np.arange(np.prod(SHAPE)), np.zeros(1, int))


@pytest.mark.parametrize("case", UNIFORM.values(), ids=UNIFORM)
def test_uniform(case: Any) -> None:
    make, low, high = case
    expected = low + (high - low) * keyed_numbers(keyed.uniform)
    np.testing.assert_allclose(drawn(make), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", NORMAL.values(), ids=NORMAL)
def test_normal(case: Any) -> None:
    make, mean, std = case
    np.testing.assert_allclose(drawn(make), mean + std * keyed_numbers(keyed.normal), rtol=1e-12)


def test_a_truncated_normal_stays_within() -> None:
    z = drawn(lambda t: init.trunc_normal_(t, 1.0, 2.0, 0.0, 2.0))
    assert 0 <= z.min() < 0.01 < 1.99 < z.max() <= 2
    assert abs(z.mean() - 1) < 0.02
    plain = drawn(lambda t: init.normal_(t, 1.0, 2.0))
    inside = (plain >= 0) & (plain <= 2)
    np.testing.assert_array_equal(z[inside], plain[inside])


def test_numbers() -> None:
    p = nn.Parameter([[1.0, 2.0]])
    for make, value in ((init.ones_, 1), (init.zeros_, 0), (lambda t: init.constant_(t, 2.5), 2.5)):
        assert make(p).data.tolist() == [[value, value]]


@needs_torch
def test_gains_are_pytorchs() -> None:
    theirs = pytorch().nn.init.calculate_gain
    for name in (*init.GAINS, "leaky_relu"):
        assert init.calculate_gain(name) == pytest.approx(theirs(name))
    assert init.calculate_gain("leaky_relu", 0.3) == pytest.approx(theirs("leaky_relu", 0.3))


def test_values_depend_on_the_seed_and_the_path_alone() -> None:
    """Whenever it is called: before the layer is part of a model, in it, or after a first use."""

    def model(late: bool, used: bool) -> nn.Module:
        with nnmpi.seeded(5):
            layer = nn.Linear(3, 4)
            if not late:
                init.normal_(layer.weight)
            m = nn.Sequential(nn.ReLU(), layer)
        if used:
            optim.SGD(m.parameters(), lr=0.1)
        if late:
            init.normal_(layer.weight)
        return m

    wanted = keyed.normal(keyed.key(5, "init", "1.weight"), np.arange(12), np.zeros(1, int))
    for late, used in ((False, False), (True, False), (True, True)):
        m = model(late, used)
        assert m[1].weight.is_drawn == used
        np.testing.assert_array_equal(m[1].weight.data.ravel(), wanted.astype("float32"))


def test_a_pickle_may_name_initial_values_of_layers_here() -> None:
    """Pickles of earlier versions do. (`fan_in` makes a `uniform`, so pickles do not name it.)"""
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Linear(3, 2), nn.LayerNorm(2))
    text = pickle.dumps(model, protocol=0)
    earlier = text.replace(b"nnmpi.nn.initial\n", b"nnmpi.nn.init\n")
    assert earlier != text
    loaded = pickle.loads(earlier).state_dict()
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(loaded[name], values)


def test_initial_values_of_layers_are_names_of_this_module_too() -> None:
    parameter = nn.Parameter.lazy((60,), init.fan_in(9))
    assert 0.3 < np.abs(parameter.data).max() <= 1 / 3


class Block(nn.Module):
    def __init__(self) -> None:
        self.scale = nn.Parameter(np.empty((2, 2), "float32"))
        self.inner = nn.Linear(2, 2)
        init.uniform_(self.scale)
        self.inner.apply(lambda m: init.xavier_normal_(m.weight))


def test_blocks_of_a_model_differ_and_parameters_of_arrays_too() -> None:
    model = nn.ModuleList([Block(), Block()])
    for name in ("scale", "inner.weight"):
        a, b = (dict(m.named_parameters())[name].data for m in model)
        assert (a != b).all()
    with nnmpi.seeded(0):
        alone = [init.normal_(nn.Parameter(np.empty(4))) for _ in range(2)]
        tensors = [init.normal_(nnmpi.tensor(np.empty(4))) for _ in range(2)]
    assert len({t.array.tobytes() for t in (*alone, *tensors)}) == 4
    with nnmpi.seeded(0):
        again = init.normal_(nn.Parameter(np.empty(4)))
    np.testing.assert_array_equal(again.data, alone[0].data)


@needs_device
def test_a_write_keeps_type_and_device() -> None:
    p = nn.Parameter(DEVICE.asarray(np.zeros((2, 3), "float16")))
    assert type(init.kaiming_normal_(p).array) is DEVICE.xp.ndarray
    assert p.dtype == "float16"


def test_a_write_keeps_gradient_and_memory() -> None:
    layer = nn.Linear(2, 3)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    layer(np.ones((1, 2), "float32")).sum().backward()
    memory, grad = layer.weight.array, layer.weight.grad_array.copy()
    init.ones_(layer.weight)
    assert layer.weight.array is memory
    assert memory.tolist() == [[1, 1]] * 3
    np.testing.assert_array_equal(layer.weight.grad, grad)
    opt.step()
    t = nnmpi.tensor(np.zeros(3, "float32"), requires_grad=True)
    assert init.ones_(t).numpy().tolist() == [1, 1, 1]


def test_an_array_is_not_written_to() -> None:
    with pytest.raises(TypeError, match=r"normal_.*not a ndarray.*layer\.weight"):
        init.normal_(np.ones(3))
