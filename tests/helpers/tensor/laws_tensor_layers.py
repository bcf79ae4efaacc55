"""Laws of sharded layers, on any Comm: each is the ordinary layer of the same path and seed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from nnmpi import nn
from nnmpi.autograd import Tensor
from nnmpi.autograd.check import directional_error
from nnmpi.comm import Comm
from nnmpi.nn import Parameter
from nnmpi.nn.models import MODELS, mlp
from nnmpi.parallel.tensor.conv import ColumnConv2d, RowConv2d
from nnmpi.parallel.tensor.layers import ColumnLinear, RowLinear, ShardedEmbedding
from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss
from nnmpi.parallel.tensor.ops import gather, scatter
from nnmpi.parallel.tensor.parallelize import parallelize
from nnmpi.parallel.tensor.sharding import Sharding

BOUND = 1e-12


class Case(NamedTuple):
    """A model, an input of it, and which layers become what."""

    layers: Callable[[], Iterable[nn.Module]]
    shape: tuple[int, ...]
    how: str | None  # None: it depends on the number of ranks
    integers: int = 0

    def build(self) -> nn.Sequential:
        made = self.layers()
        return made if isinstance(made, nn.Sequential) else nn.Sequential(*made)


CASES: dict[str, Case] = {
    "linear relu linear": Case(
        lambda: (nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 5)), (4, 6), "column row"
    ),
    "without biases": Case(
        lambda: (nn.Linear(6, 11, bias=False), nn.Tanh(), nn.Linear(11, 5, bias=False), nn.ReLU()),
        (4, 6),
        "column row",
    ),
    "relu after the row": Case(
        lambda: (nn.Linear(6, 9), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5)),
        (4, 6),
        "column row column",
    ),
    "sequences": Case(
        lambda: (nn.Linear(6, 9), nn.Dropout(0.4), nn.Sigmoid(), nn.Linear(9, 5)),
        (4, 3, 6),
        "column channels row",
    ),
    "layer norm needs whole features": Case(
        lambda: (nn.Linear(6, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 5)),
        (4, 6),
        "column,gathers copy column",
    ),
    "so does RMS norm": Case(
        lambda: (nn.Linear(6, 7), nn.SiLU(), nn.RMSNorm(7), nn.Linear(7, 5)),
        (4, 6),
        "column,gathers copy column",
    ),
    "convolutions": Case(
        lambda: (
            *(nn.Conv2d(2, 9, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(9, 5, 3), nn.ReLU(), nn.MaxPool2d(2)),
        ),
        (3, 2, 8, 8),
        "column row",
    ),
    "strides": Case(
        lambda: (
            nn.Conv2d(2, 5, 5, stride=2, padding=2, bias=False),
            nn.AvgPool2d(2, stride=1),
            nn.Conv2d(5, 3, 2, stride=2, bias=False),
        ),
        (3, 2, 9, 9),
        "column row",
    ),
    "batch norm and dropout": Case(
        lambda: (
            *(nn.Conv2d(2, 7, 3, bias=False), nn.BatchNorm2d(7), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.BatchNorm1d(63)),
            *(nn.Linear(63, 5), nn.BatchNorm1d(5)),
        ),
        (5, 2, 8, 8),
        "column channels channels channels channels row copy",
    ),
    "groups of channels": Case(
        lambda: (
            *(nn.Conv2d(2, 12, 3), nn.GroupNorm(12, 12), nn.SiLU()),
            *(nn.Conv2d(12, 3, 2), nn.LeakyReLU(0.2)),
        ),
        (3, 2, 6, 6),
        "column channels row",
    ),
    "a group on two ranks": Case(
        lambda: (
            *(nn.Conv2d(2, 10, 3), nn.Identity(), nn.GroupNorm(2, 10)),
            *(nn.Conv2d(10, 4, 2), nn.Flatten(), nn.Linear(36, 5)),
        ),
        (3, 2, 6, 6),
        None,
    ),
    "normalised sequences": Case(
        lambda: (
            *(nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.SiLU(), nn.GroupNorm(8, 8)),
            *(nn.Conv1d(8, 4, 2), nn.Identity(), nn.BatchNorm1d(4, momentum=None)),
        ),
        (3, 2, 9),
        "column channels channels row copy",
    ),
    "groups of features": Case(
        lambda: (nn.Linear(6, 8), nn.GroupNorm(4, 8, affine=False), nn.Linear(8, 5)),
        (4, 6),
        "column,gathers column",
    ),
    "softmax needs whole features": Case(
        lambda: (nn.Linear(6, 7), nn.SiLU(), nn.Softmax(-1), nn.Linear(7, 5), nn.LeakyReLU()),
        (4, 6),
        "column,gathers column",
    ),
    "batch norm, cumulative": Case(
        lambda: (nn.Linear(6, 7), nn.BatchNorm1d(7, momentum=None), nn.Tanh(), nn.Linear(7, 5)),
        (5, 6),
        "column channels row",
    ),
    "embedding with padding": Case(
        lambda: (nn.Embedding(9, 6, padding_idx=4), nn.Flatten(), nn.Linear(18, 8)),
        (5, 3),
        "rows column",
        integers=9,
    ),
    "images of which features are needed": Case(
        lambda: (nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2), nn.Linear(9, 4)),
        (3, 2, 8, 8),
        "column,gathers column,gathers",
    ),
    "ported layers": Case(
        lambda: (
            *(nn.Conv2d(2, 5, 3, padding=1, padding_mode="reflect"), nn.ReLU(inplace=True)),
            *(nn.MaxPool2d(2), nn.PReLU(5), nn.InstanceNorm2d(5, affine=True), nn.Dropout2d(0.4)),
            *(nn.Upsample(scale_factor=2), nn.ELU(), nn.Softplus()),
            *(nn.Conv2d(5, 4, 3, padding="same", padding_mode="circular"), nn.PReLU()),
        ),
        (3, 2, 8, 8),
        "column channels channels channels row copy",
    ),
    "padded sequences": Case(
        lambda: (
            *(nn.Conv1d(3, 5, 3, padding=2, padding_mode="circular"), nn.PReLU(5)),
            *(nn.Conv1d(5, 4, 3, padding=1, padding_mode="replicate"), nn.PReLU()),
        ),
        (3, 3, 9),
        "column channels row copy",
    ),
    "one slope of all features": Case(
        lambda: (nn.Linear(6, 7), nn.PReLU(), nn.Linear(7, 5)), (4, 6), "column,gathers copy column"
    ),
    "tuples and dilation": Case(
        lambda: (
            nn.Conv2d(2, 5, (3, 2), (2, 1), padding=(1, 0), dilation=(1, 2)),
            nn.MaxPool2d((2, 1), ceil_mode=True),
            nn.Conv2d(5, 4, (2, 3), padding="same", dilation=2),
            nn.AdaptiveAvgPool2d((2, 3)),
        ),
        (3, 2, 9, 7),
        "column row",
    ),
    "depthwise": Case(
        lambda: (
            *(nn.Conv2d(2, 5, 1), nn.ReLU(), nn.Conv2d(5, 10, 3, groups=5), nn.BatchNorm2d(10)),
            *(nn.ReLU(), nn.Conv2d(10, 10, 3, 2, 1, groups=10, bias=False), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(40, 5)),
        ),
        (3, 2, 12, 12),
        "column channels channels channels row",
    ),
    "transposed": Case(
        lambda: (
            *(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.ConvTranspose2d(5, 4, 4, 2, 1)),
            *(nn.Conv2d(4, 6, 1), nn.Conv2d(6, 3, 1)),
        ),
        (2, 2, 6, 6),
        "column,gathers copy column row",
    ),
    "sequences convolved": Case(
        lambda: (
            nn.Conv1d(3, 5, 3, padding="same"),
            *(nn.MaxPool1d(3, 1, 1), nn.AvgPool1d(3, 1, 1), nn.GELU()),
            nn.Conv1d(5, 6, 2, 2, dilation=2),
            *(nn.Conv1d(6, 6, 3, groups=3), nn.Conv1d(6, 5, 1), nn.Flatten(), nn.Linear(10, 4)),
        ),
        (3, 3, 9),
        "column row copy column row",
    ),
    "embedding": Case(
        lambda: (nn.Embedding(9, 6), nn.Flatten(), nn.Linear(18, 8), nn.Sequential(nn.ReLU())),
        (5, 3),
        "rows column",
        integers=9,
    ),
    "nested": Case(
        lambda: (
            nn.Sequential(nn.Linear(6, 8), nn.ReLU()),
            nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 5)),
        ),
        (4, 6),
        "column row column",
    ),
    "mlp": Case(lambda: mlp(12, 20, 9, 10), (4, 3, 4), "column row column"),
    "iris-mlp": Case(MODELS["iris-mlp"], (4, 4), "column row"),
    "digits-cnn": Case(MODELS["digits-cnn"], (4, 1, 8, 8), "column channels row copy column"),
    "mnist-cnn": Case(MODELS["mnist-cnn"], (2, 1, 28, 28), "column row column row column"),
    "cifar-cnn": Case(MODELS["cifar-cnn"], (2, 3, 32, 32), "column row column row column"),
}


def _input(case: Case) -> np.ndarray:
    rng = np.random.default_rng(1)
    if case.integers:
        return rng.integers(0, case.integers, case.shape)
    return rng.standard_normal(case.shape)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-3))


def _close(a: np.ndarray, b: np.ndarray) -> None:
    assert _distance(a, b) < BOUND


def _own(whole: np.ndarray, sharding: Sharding, comm: Comm) -> np.ndarray:
    """What this rank has of the output of the model."""
    bounds = sharding.output
    return whole if bounds is None else whole[..., bounds[comm.rank] : bounds[comm.rank + 1]]


def _twins(comm: Comm, case: Case, drawn_first: bool) -> tuple[nn.Module, nn.Module, Sharding]:
    """The model on one rank, and the same sharded."""
    models = [case.build(), case.build()]
    for model in models:
        model.seed = 7
    whole, model = models
    whole.to("float64")
    if drawn_first:
        model.to("float64")
    sharding = parallelize(model, comm, _input(case))
    model.to("float64")
    return whole, model, sharding


def words(sharding: Sharding) -> str:
    """Which layers became what."""
    return " ".join(x.how + ",gathers" * x.gathers for x in sharding.layers)


def equals_one_rank(comm: Comm, name: str, drawn_first: bool = False) -> None:
    """Outputs, gradients, drawn values, Dropout masks and running statistics."""
    _equals_one_rank(comm, CASES[name], drawn_first)


def _equals_one_rank(comm: Comm, case: Case, drawn_first: bool) -> None:
    whole, model, sharding = _twins(comm, case, drawn_first)
    assert case.how in (None, words(sharding))
    x = _input(case)
    leaves = [Tensor(x.copy(), requires_grad=x.dtype.kind == "f") for _ in range(2)]
    for _ in range(2):  # the second pass has other Dropout masks
        wanted, got = whole(leaves[0]), model(leaves[1])
    g = np.cos(np.arange(wanted.size)).reshape(wanted.shape)
    _close(got.array, _own(wanted.array, sharding, comm))
    wanted.backward(g)
    got.backward(np.ascontiguousarray(_own(g, sharding, comm)))
    if leaves[0].requires_grad:
        _close(leaves[1].grad_array, leaves[0].grad_array)
    of_whole = {place.path: tensor for place, tensor in whole.tensors()}
    largest = max(np.abs(p.grad_array).max() for p in whole.parameters())
    for place, tensor in model.tensors():
        one = of_whole[place.path]
        if isinstance(tensor, Parameter):
            assert (tensor.array == one.array[place.slices]).all()
            error = np.abs(tensor.grad_array - one.grad_array[place.slices]).max(initial=0)
            assert error < BOUND * largest, place.path
        else:
            _close(tensor.array, one.array[place.slices])
    assert [*of_whole] == [place.path for place, _ in model.tensors()]


def cut_values_are_those_drawn_by_part(comm: Comm) -> None:
    for name in CASES:
        equals_one_rank(comm, name, drawn_first=True)


def groups_that_would_be_cut_are_whole(comm: Comm) -> None:
    """Two groups of six channels: on three and four ranks they are gathered."""
    how = "column,gathers copy column row" if comm.size > 2 else "column channels row column"

    def layers() -> list[nn.Module]:
        images = [nn.Conv2d(2, 12, 1), nn.Conv2d(12, 12, 3, groups=2), nn.ReLU()]
        return [*images, nn.Conv2d(12, 5, 1), nn.Flatten(), nn.Linear(80, 4)]

    _equals_one_rank(comm, Case(layers, (2, 2, 6, 6), how), drawn_first=False)


def evaluation_equals_one_rank(comm: Comm) -> None:
    """With running statistics, and without Dropout."""
    case = CASES["batch norm and dropout"]
    whole, model, sharding = _twins(comm, case, False)
    x = Tensor(_input(case))
    for m in (whole, model):
        m(x)
        m.eval()
    _close(model(x).array, _own(whole(x).array, sharding, comm))


def layers_agree_with_finite_differences(comm: Comm) -> None:
    """Each layer alone, between ops that make a function of whole arrays of it."""
    rng = np.random.default_rng(0)
    x, image = rng.standard_normal((3, 7)), rng.standard_normal((2, 7, 5, 5))
    columns = (ColumnLinear(7, 6, comm), ColumnConv2d(7, 6, 3, comm, padding=1))
    rows = (RowLinear(7, 6, comm), RowConv2d(7, 6, 3, comm, stride=2))
    gathers = ColumnLinear(7, 6, comm, gather_output=True)
    for layer in (*columns, *rows, gathers):
        layer.to("float64")
    for layer, a in zip(columns, (x, image), strict=True):
        assert directional_error(lambda t: gather(layer(t), comm, layer.bounds), a) < 1e-6  # noqa: B023
    for layer, a in zip(rows, (x, image), strict=True):
        assert directional_error(lambda t: layer(scatter(t, comm, layer.bounds)), a) < 1e-6  # noqa: B023
    assert directional_error(gathers, x) < 1e-6


def an_empty_batch_has_zero_gradients(comm: Comm) -> None:
    """A rank along dp without samples takes part in the sums of its tp group."""
    model = nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 6), nn.Linear(6, 4)
    )
    x = np.zeros((0, 1, 4, 4), np.float32)
    sharding = parallelize(model, comm, x)
    y = model(Tensor(x, requires_grad=True))
    assert sharding.output is not None
    loss = ShardedCrossEntropyLoss(comm, sharding.output, reduction="sum")(y, np.zeros(0, np.int64))
    loss.backward()
    assert loss.item() == 0
    assert all((p.grad_array == 0).all() for p in model.parameters())


def a_rank_draws_only_its_part(comm: Comm) -> None:
    model = mlp(12, 24, 10)
    parallelize(model, comm, np.zeros((1, 12)))
    drawn = sum(p.array.size for p in model.parameters())
    whole = sum(p.array.size for p in mlp(12, 24, 10).parameters())
    assert drawn <= whole / comm.size + 12 + 10
    embedding = ShardedEmbedding(9, 4, comm)
    assert embedding.weight.shape[0] in (9 // comm.size, -(-9 // comm.size))


def both_layers_of_a_pair_run_as_one_op_with_relu(comm: Comm) -> None:
    """The result of an op, its ReLU and its pooling is one node of the tape."""
    model = nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5, 3)
    )
    x = np.ones((2, 1, 4, 4), np.float32)
    parallelize(model, comm, x)
    y = model(Tensor(x))
    flat = y.node.parents[0]
    assert flat.parents[0].parents[1] is model[0].weight
