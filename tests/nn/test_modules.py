"""The tree of modules: names, paths, what may be assigned and what is refused."""

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import nn
from nnmpi.nn.models import digits_cnn


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


class Block(nn.Module):
    def __init__(self) -> None:  # no super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.scale = nn.Parameter([1.0, 2.0, 3.0])
        self.last = nn.Linear(3, 2, bias=False)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(self.inner(x) * self.scale)
        return y


NAMES = ["scale", "inner.0.weight", "inner.0.bias", "inner.1.weight", "inner.1.bias", "last.weight"]
BUFFERS = [f"inner.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def test_a_tree_of_modules() -> None:
    block = Block()
    assert names(block) == NAMES
    assert [name for name, _ in block.named_buffers()] == BUFFERS
    assert sorted(block.state_dict()) == sorted(NAMES + BUFFERS)
    paths = [m.path for m in block.modules()]
    assert paths == ["", "inner", "inner.0", "inner.1", "last"]
    assert {m.root for m in block.modules()} == {block}
    assert [p.place.path for p in block.parameters()] == NAMES
    assert block.scale.dtype == "float32"


def test_values_and_gradients_of_the_same_shape_are_copied() -> None:
    weight, value = nn.Linear(3, 2).weight, np.arange(6.0).reshape(2, 3)
    weight.data = nnmpi.tensor(value)
    weight.grad = value.tolist()
    weight.data *= 2
    weight.grad += 1
    np.testing.assert_array_equal(weight.data, 2 * value)
    np.testing.assert_array_equal(weight.grad, value + 1)


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "mean"], ids=repr)
def test_a_buffer_that_is_no_tensor_is_refused(value: object) -> None:
    module = nn.Module()
    with refused("Module.mean", "buffer", type(value).__name__, "nnmpi.tensor"):
        module.register_buffer("mean", value)
    assert list(module.named_buffers()) == []
    norm = nn.BatchNorm1d(2)
    with refused("BatchNorm1d.running_mean", "buffer", type(value).__name__):
        norm.running_mean = value
    assert norm.running_mean.tolist() == [0, 0]


def test_tied_weights_count_once() -> None:
    a, b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    b.weight = a.weight
    model, x = nn.Sequential(a, nn.Tanh(), b), some(4, 3)
    assert names(model) == ["0.weight"]
    assert list(model.state_dict()) == ["0.weight", "2.weight"]
    model(x).sum().backward()
    apart = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    apart.load_state_dict(model.state_dict())
    apart(x).sum().backward()
    np.testing.assert_allclose(
        a.weight.grad, apart[0].weight.grad + apart[2].weight.grad, rtol=1e-5
    )


def test_to_keeps_values_and_gradients() -> None:
    model = digits_cnn()
    model(some(3, 1, 8, 8)).sum().backward()
    before = [(p.data.copy(), p.grad.copy()) for p in model.parameters()]
    assert model.to(np.float64) is model
    for p, (value, grad) in zip(model.parameters(), before, strict=True):
        assert p.data.dtype == p.grad.dtype == "float64"
        np.testing.assert_array_equal(p.data, value)
        np.testing.assert_array_equal(p.grad, grad)
    assert model(some(3, 1, 8, 8, dtype="float64")).dtype == "float64"


def test_no_model_contains_itself() -> None:
    a, b, c = (nn.Module() for _ in range(3))
    a.b, b.c = b, c
    for inner, outer in ((a, a), (b, a), (c, a), (c, b)):
        with refused("Module.again", "contain itself"):
            inner.again = outer
    assert [m.path for m in a.modules()] == ["", "b", "b.c"]
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with refused("Linear.part", "a Sequential"):
        model[1].part = model[1:]
    removed = model[0]
    model[0] = nn.Linear(2, 2)
    with refused("Linear.model"):
        removed.model = model
    a.twice = c  # in two places, but not in itself
    assert c.path == "b.c"


HIDDEN = {
    "list": lambda: [nn.Linear(3, 3), nn.Linear(3, 3)],
    "tuple": lambda: (1, nn.Parameter([1.0])),
    "dict": lambda: {"first": nn.Linear(3, 3)},
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_layers_hidden_from_the_model_are_refused(kind: str) -> None:
    module = nn.Module()
    with refused("Module.layers", f"in a {kind}", "nn.ModuleList", "nn.Sequential"):
        module.layers = HIDDEN[kind]()
    assert not hasattr(module, "layers")
    module.sizes, module.names = [1, 2], {"a": (3,)}


class Plain(nn.Module):
    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x


def test_options_that_no_layer_has_are_refused() -> None:
    for make in (nn.Sigmoid, nn.Tanh, nn.Module, Plain):
        make()
        with pytest.raises(TypeError, match="positional argument"):
            make(3)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            make(inplace=True)


@pytest.mark.parametrize("name", ["cpus", "float31", "int64"])
def test_a_word_that_is_neither_a_type_nor_a_device(name: str) -> None:
    with refused(repr(name), '"float32", or "cuda"'):
        nn.Linear(2, 2).to(name)
