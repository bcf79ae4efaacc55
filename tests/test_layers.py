"""Layers, the tree of modules they stand in, and Sequential with its fused groups."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from datafiles import refused

import nnmpi
from nnmpi import nn, optim
from nnmpi.nn.models import digits_cnn, mlp


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(3, 5), (2, 3), (2, 5)),
    "Linear, many axes": (lambda: nn.Linear(3, 5, bias=False), (2, 4, 6, 3), (2, 4, 6, 5)),
    "Linear, no samples": (lambda: nn.Linear(3, 5), (0, 3), (0, 5)),
    "Conv2d": (lambda: nn.Conv2d(3, 5, 3), (2, 3, 7, 8), (2, 5, 5, 6)),
    "Conv2d, all options": (
        lambda: nn.Conv2d(3, 5, 4, 3, 2, bias=False),
        (2, 3, 9, 7),
        (2, 5, 4, 3),
    ),
    "Conv2d, no samples": (lambda: nn.Conv2d(3, 5, 3), (0, 3, 7, 8), (0, 5, 5, 6)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 7, 8), (2, 3, 3, 4)),
    "MaxPool2d, all options": (lambda: nn.MaxPool2d(3, 1, 1), (2, 3, 7, 8), (2, 3, 7, 8)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 7, 8), (2, 3, 4, 4)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (4, 3), (4, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 2, 5), (4, 3, 2, 5)),
    "LayerNorm": (lambda: nn.LayerNorm((4, 5)), (2, 3, 4, 5), (2, 3, 4, 5)),
    "Dropout": (lambda: nn.Dropout(0.5), (4, 3, 2), (4, 3, 2)),
    "Flatten": (nn.Flatten, (2, 3, 4, 5), (2, 60)),
    "Flatten, no samples": (nn.Flatten, (0, 3, 4), (0, 12)),
    "ReLU": (nn.ReLU, (2, 3), (2, 3)),
    "GELU": (nn.GELU, (2, 3), (2, 3)),
    "Sigmoid": (nn.Sigmoid, (2, 3), (2, 3)),
    "Tanh": (nn.Tanh, (2, 3), (2, 3)),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), (2, 3), (2, 3)),
}


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_shapes_forward_and_back(case: Any) -> None:
    make, shape, expected = case
    layer, x = make(), some(*shape)
    x.requires_grad = True
    y = layer(x)
    assert (y.shape, y.dtype) == (expected, x.dtype)
    y.backward(np.ones(expected, "float32"))
    for leaf in (x, *layer.parameters()):
        assert leaf.grad.shape == leaf.shape
        assert leaf.grad.dtype == leaf.dtype


def test_embedding_takes_integers_of_any_shape() -> None:
    layer = nn.Embedding(7, 3)
    for index in ([1, 2], np.zeros((2, 4), "uint8"), nnmpi.tensor([[6]]), np.zeros((0, 2), int)):
        assert layer(index).shape == (*np.shape(getattr(index, "data", index)), 3)


def test_a_squared_error_has_the_type_of_the_prediction() -> None:
    layer, x = nn.Linear(3, 2), some(4, 3)
    for target in (np.zeros((4, 2)), [[1, 2]] * 4, some(4, 2, dtype="float64")):
        loss = nn.MSELoss()(layer(x), target)
        loss.backward()
        assert loss.dtype == layer.weight.grad.dtype == "float32"


REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "width": (lambda: nn.Linear(3, 5)(some(2, 4)), ("(2, 4)", "(5, 3)", "must be 3")),
    "type": (lambda: nn.Linear(3, 5)(some(2, 3, dtype="float64")), ("float64", "float32")),
    "channels": (lambda: nn.Conv2d(3, 5, 3)(some(2, 4, 5, 5)), ("(2, 4, 5, 5)", "(N, 3, H, W)")),
    "image": (lambda: nn.Conv2d(3, 5, 3)(some(2, 3, 2, 9)), ("2x9", "3x3")),
    "pool": (lambda: nn.MaxPool2d(3)(some(2, 3, 2, 9)), ("(2, 3, 2, 9)", "3x3")),
    "pad": (lambda: nn.AvgPool2d(2, 2, 2)(some(2, 3, 8, 8)), ("padding 2", "half the window 2")),
    "norm": (lambda: nn.BatchNorm2d(3)(some(2, 3)), ("BatchNorm2d", "(2, 3)", "C = 3")),
    "norm channels": (lambda: nn.BatchNorm1d(3)(some(2, 4)), ("(2, 4)", "C = 3")),
    "norm of one": (lambda: nn.BatchNorm1d(3)(some(1, 3)), ("variance", "more than one")),
    "layer norm": (lambda: nn.LayerNorm((4, 5))(some(5)), ("(5,)", "(4, 5)")),
    "row": (lambda: nn.Embedding(4, 3)([0, 4]), ("from 0 to 4", "0 to 3")),
    "row of a tensor": (lambda: nn.Embedding(4, 3)(nnmpi.tensor([-1])), ("from -1", "0 to 3")),
    "half a row": (lambda: nn.Embedding(4, 3)([0.5]), ("integers", "float64")),
    "mask": (lambda: nn.Embedding(4, 3)([True]), ("integers", "bool")),
    "dropout": (lambda: nn.Dropout(1.0), ("p=1.0",)),
    "sizes": (lambda: nn.Linear(3, -1), ("out_features=-1", "at least 0")),
    "kernel": (lambda: nn.Conv2d(1, 2, (3, 3)), ("kernel_size=(3, 3)", "integer")),
    "stride": (lambda: nn.MaxPool2d(2, 0), ("MaxPool2d", "stride=0", "at least 1")),
    "groups": (lambda: nn.Conv2d(2, 2, 3, groups=2), ("groups=2",)),
    "algorithm": (lambda: nn.Conv2d(2, 2, 3, algorithm="fft"), ("'fft'", "im2col")),
    "reduction": (lambda: nn.MSELoss("max"), ("'max'", "mean, sum, none")),
    "class": (lambda: nn.CrossEntropyLoss()(some(2, 3), [0, 3]), ("from 0 to 3", "0 to 2")),
    "negative class": (lambda: nn.NLLLoss()(some(2, 3), [0, -1]), ("from -1", "0 to 2")),
    "labels": (lambda: nn.NLLLoss()(some(2, 3), [0]), ("(2, 3)", "(1,)", "(N, C)")),
    "scores": (lambda: nn.CrossEntropyLoss()(some(2, 3), [0.0, 1.0]), ("float64", "integers")),
    "target": (lambda: nn.MSELoss()(some(2, 3), [1.0, 2.0]), ("(2, 3)", "(2,)")),
    "list": (lambda: nn.Sequential([nn.ReLU()]), ("list", "Sequential(*layers)")),
    "mlp": (lambda: mlp(4), ("two widths",)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_bad_input_gives_one_line(case: Any) -> None:
    call, words = case
    with refused(*words):
        call()


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


def test_train_eval_and_zero_grad_reach_every_module() -> None:
    block = Block()
    assert block.eval() is block
    assert not any(m.training for m in block.modules())
    assert all(m.training for m in block.train().modules())
    block(some(4, 2)).sum().backward()
    assert all(p.has_grad for p in block.parameters())
    block.zero_grad()
    assert [p.grad for p in block.parameters()] == [None] * len(NAMES)


def test_what_takes_anothers_place_keeps_its_place() -> None:
    block = Block()
    old = block.scale
    block.scale = nn.Parameter(np.zeros(3, "float32"))
    block.inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with nnmpi.no_grad():
        block.inner[0].weight += 1
    assert names(block) == NAMES
    assert block.scale is not old
    block.last = None
    del block.scale
    assert names(block) == NAMES[1:-1]
    assert not hasattr(block, "scale")
    with pytest.raises(AttributeError):
        del block.scale
    with refused("Linear.weight", "Parameter", "ndarray", ".data"):
        block.inner[0].weight = np.zeros((3, 2), "float32")
    with refused("Block.inner", "Module", "function"):
        block.inner = lambda x: x
    assert names(block) == NAMES[1:-1]


def test_data_may_be_written() -> None:
    p = nn.Parameter(np.ones(3))
    memory = p.data
    p.data -= 0.25
    p.data = np.array([0.5, 0.75, 1.0])
    assert p.data is memory
    assert memory.tolist() == [0.5, 0.75, 1.0]


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


def test_repr() -> None:
    text = "Sequential(\n  (0): Linear(2, 3, bias=True)\n  (1): Dropout(p=0.5)\n)"
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))) == text
    assert "kernel_size=3" in repr(nn.Conv2d(1, 2, 3))


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


def test_a_deep_copy_is_a_model_of_its_own() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), some(2, 3)
    model[2].weight = model[0].weight
    y = model(x).numpy()
    optim.SGD(model.parameters(), lr=0.1)
    twin = copy.deepcopy(model)
    twin[0].weight.data *= 0
    assert names(twin) == names(model)
    assert [p.place for p in twin.parameters()] == [p.place for p in model.parameters()]
    assert {p.owner.root for p in twin.parameters()} == {twin}
    np.testing.assert_array_equal(model(x).numpy(), y)
    np.testing.assert_array_equal(twin(x).numpy(), np.tile(twin[2].bias.data, (2, 1)))


def apart(model: nn.Module, x: nnmpi.Tensor) -> nnmpi.Tensor:
    """What the layers of a Sequential give one by one."""
    for layer in model.children():
        x = layer(x)
    return x


def kinds(model: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in model]


def test_sequential_is_a_list_of_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    assert model.append(nn.ReLU()).append(nn.Linear(4, 2)) is model
    assert (len(model), model[-1]) == (3, list(model)[2])
    x = some(2, 3)
    assert model(x).shape == (2, 2)
    model[1] = nn.Tanh()
    assert kinds(model) == ["Linear", "Tanh", "Linear"]
    np.testing.assert_array_equal(model(x).numpy(), apart(model, x).numpy())
    delattr(model, "1")
    np.testing.assert_array_equal(model(x).numpy(), apart(model, x).numpy())
    model.append(nn.Sigmoid())
    assert kinds(model) == ["Linear", "Linear", "Sigmoid"]
    assert len(nn.Sequential()) == 0


def test_a_slice_shares_layers_and_leaves_the_model_as_it_is() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh()), some(2, 3)
    before, places = model(x).numpy().copy(), [p.place for p in model.parameters()]
    part = model[1:3]
    assert kinds(part) == ["ReLU", "Linear"]
    assert names(part) == ["1.weight", "1.bias"]
    assert part[1].weight is model[2].weight
    part[0] = nn.Sigmoid()
    part.append(nn.Linear(4, 1))
    wrapped = nn.Sequential(part, nn.Linear(1, 1))
    assert [p.place for p in model.parameters()] == places
    assert model[2].root is model
    np.testing.assert_array_equal(model(x).numpy(), before)
    assert [m.path for m in (part, part[0], part[2], wrapped[1])] == ["0", "0.0", "0.2", "1"]
    assert part[2].root is wrapped


def test_weights_drawn_through_a_slice_are_those_of_the_model() -> None:
    model, whole = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    np.testing.assert_array_equal(model[1:][0].weight.data, whole[1].weight.data)


def test_a_layer_that_was_replaced_may_move_to_another_model() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    old = model[1]
    part = model[1:]
    model[1] = nn.Linear(3, 5)
    assert part[0] is old
    assert model[1].path == "1"
    other = nn.Sequential(nn.ReLU(), nn.ReLU(), old)
    assert (old.path, old.root) == ("2", other)
    assert old.weight.place.path == "2.weight"


GROUPS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "Linear ReLU": (lambda: [nn.Linear(6, 5), nn.ReLU()], (7, 6)),
    "Conv ReLU": (lambda: [nn.Conv2d(3, 4, 3, 2), nn.ReLU()], (2, 3, 9, 8)),
    "Conv pool": (lambda: [nn.Conv2d(3, 4, 2, bias=False), nn.MaxPool2d(2)], (2, 3, 9, 8)),
    "Conv ReLU pool": (lambda: _block("im2col", 3), (2, 3, 7, 8)),
    "Conv wide pool": (lambda: [nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2)], (2, 3, 9, 8)),
    "Conv ReLU dense pool": (lambda: [*_block("auto", 3)[:2], nn.MaxPool2d(2, 1)], (2, 3, 7, 8)),
    "Conv ReLU padded pool": (
        lambda: [*_block("auto", 3)[:2], nn.MaxPool2d(2, 2, 1)],
        (2, 3, 7, 8),
    ),
    "Winograd ReLU pool": (lambda: _block("winograd2", 8), (2, 8, 7, 9)),
    "all": (
        lambda: [*_block("auto", 3), nn.Flatten(), nn.Linear(48, 4), nn.ReLU()],
        (2, 3, 8, 6),
    ),
}


def _block(algorithm: str, channels: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, 4, 3, padding=1, algorithm=algorithm)
    return [conv, nn.ReLU(), nn.MaxPool2d(2)]


@pytest.mark.parametrize("whole_numbers", [True, False])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_a_fused_group_gives_what_its_layers_give(group: Any, whole_numbers: bool) -> None:
    """With whole numbers every sum is exact, whatever its order: then all bits are equal."""
    make, shape = group
    model, x = nn.Sequential(*make()), some(*shape)
    x.requires_grad = True
    if whole_numbers:
        x = nnmpi.tensor(np.round(2 * x.numpy()), requires_grad=True)
        for p in model.parameters():
            p.data[...] = np.round(3 * p.data / np.abs(p.data).max())
    rtol = 0 if whole_numbers else 1e-5
    found = []
    for run in (model, lambda x: apart(model, x)):
        model.zero_grad()
        x.grad = None
        y = run(x)
        y.backward(np.round(4 * some(*y.shape).numpy()))
        found.append([y.numpy(), x.grad.copy(), *(p.grad.copy() for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())
        assert b.any()


def test_groups_are_fused_but_a_subclass_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Conv2d):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            return super().forward(x) * 2

    class Shifted(nn.ReLU):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            return super().forward(x + 1)

    x = some(2, 3, 6, 6)
    for layers in ([Twice(3, 4, 3), nn.ReLU()], [nn.Conv2d(3, 4, 3), Shifted(), nn.MaxPool2d(2)]):
        model = nn.Sequential(*layers)
        np.testing.assert_array_equal(model(x).numpy(), apart(model, x).numpy())
    monkeypatch.setattr(nn.ReLU, "forward", None)
    monkeypatch.setattr(nn.MaxPool2d, "forward", None)
    nn.Sequential(*_block("auto", 3), nn.Flatten(), nn.Linear(36, 4), nn.ReLU())(x)
    with pytest.raises(TypeError):
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3))(x)
