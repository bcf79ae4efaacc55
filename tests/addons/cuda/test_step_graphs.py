"""nnmpi.compile on a GPU: a step of a user's loop runs as CUDA graphs, with the bits of the step as
written."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, noted_calls
from helpers.training.steps import Made

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.nn.graph import leaves

pytestmark = needs_device


Batch = Callable[[np.random.Generator], tuple[Any, ...]]


def rows(rng: np.random.Generator) -> tuple[Any, Any]:
    """Samples on the device, and labels on the host."""
    return DEVICE.asarray(rng.standard_normal((8, 6)).astype("f")), rng.integers(0, 3, 8)


def on_device(rng: np.random.Generator) -> tuple[Any, ...]:
    return tuple(map(DEVICE.asarray, rows(rng)))


def on_host(rng: np.random.Generator) -> tuple[Any, ...]:
    x, y = rows(rng)
    return x.get(), y


def images(rng: np.random.Generator) -> tuple[Any, Any]:
    x, y = rng.standard_normal((8, 1, 6, 6)).astype("f"), rng.integers(0, 3, 8)
    return DEVICE.asarray(x), DEVICE.asarray(y)


def sequences(rng: np.random.Generator) -> tuple[Any, Any]:
    return DEVICE.asarray(rng.standard_normal((2, 3, 6)).astype("f")), None


def words(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.integers(0, 9, (2, 5)), rng.integers(0, 9, (2, 5))


def mlp(*between: nn.Module) -> nn.Module:
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 3))
    return model.to("cuda")


def trained(model: nn.Module, make: Callable[..., optim.Optimizer], loss_of: Any = None) -> Made:
    """A step that clears gradients, computes a loss and its gradients, and updates."""
    model, criterion = model.to("cuda"), nn.CrossEntropyLoss()
    optimizer = make(model.parameters())

    def loss(x: Any, y: Any) -> Tensor:
        return criterion(model(Tensor(x)), y)

    loss_of = loss if loss_of is None else partial(loss_of, model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        value = loss_of(x, y)
        value.backward()
        optimizer.step()
        return value

    return step, [model], [optimizer]


def clipped() -> Made:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(Tensor(x)), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "norm": norm}

    return step, [model], [optimizer]


def averaging() -> Made:
    """Work behind the step of the optimizer."""
    model, mean = mlp(), mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(Tensor(x)), y).backward()
        optimizer.step()
        with nnmpi.no_grad():
            mean[0].weight.mul_(0.9).add_(model[0].weight, alpha=0.1)
        return mean[0].weight.sum()

    return step, [model, mean], [optimizer]


def two() -> Made:
    """Two models, of which the second learns from the first after its step."""
    teacher, student = mlp(), mlp()
    adam = optim.Adam(teacher.parameters())
    sgd = optim.SGD(student.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        adam.zero_grad()
        first = nn.functional.cross_entropy(teacher(Tensor(x)), y)
        first.backward()
        adam.step()
        sgd.zero_grad()
        second = (teacher(Tensor(x)).detach() - student(Tensor(x))).abs().mean()
        second.backward()
        sgd.step()
        return first, second

    return step, [teacher, student], [adam, sgd]


def evaluating() -> Made:
    model = mlp().eval()

    def step(x: Any, y: Any) -> Any:
        with nnmpi.no_grad():
            scores = model(Tensor(x))
            return nn.functional.cross_entropy(scores, y), scores.argmax(1), "scores"

    return step, [model], []


def narrow(model: nn.Module, x: Any, y: Any) -> Tensor:
    with nnmpi.autocast("cuda"):
        return nn.functional.cross_entropy(model(Tensor(x)), y)


def squares(model: nn.Module, x: Any, y: Any) -> Tensor:
    out, _ = model(Tensor(x))
    return (out * out).mean()


def moved(model: nn.Module, x: Any, y: Any) -> Tensor:
    x, y = nnmpi.tensor(x, device="cuda"), nnmpi.tensor(y, device="cuda")
    return nn.functional.cross_entropy(model(x), y)


def halves(model: nn.Module, x: Any, y: Any) -> Tensor:
    return nn.functional.cross_entropy(model(Tensor(x).half()), y)


def doubles(model: nn.Module, x: Any, y: Any) -> Tensor:
    return nn.functional.cross_entropy(model(Tensor(x).double()), y)


def scores(model: nn.Module, x: Any, y: Any) -> Tensor:
    return nn.functional.cross_entropy(model(x).reshape(-1, 9), y.reshape(-1))


def attention() -> nn.Module:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Embedding(9, 8), block, nn.Linear(8, 9))


def residual() -> nn.Module:
    conv = nn.Conv2d(1, 4, 3, padding=1)
    pooled = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(
        conv, nn.BatchNorm2d(4), nn.ReLU(), *pooled, nn.Flatten(), nn.Linear(16, 3)
    )


sgd = partial(optim.SGD, lr=0.1, momentum=0.9)
STEPS: dict[str, tuple[Callable[[], Made], Batch, int]] = {
    "sgd": (lambda: trained(mlp(), sgd), rows, 5),
    "labels on the device": (lambda: trained(mlp(), sgd), on_device, 6),
    "adamw": (lambda: trained(mlp(), optim.AdamW), rows, 5),
    "lamb": (lambda: trained(mlp(), optim.LAMB), rows, 200),
    "moved": (lambda: trained(mlp(), sgd, moved), on_host, 6),
    "dropout": (lambda: trained(mlp(nn.Dropout(0.3)), sgd), rows, 5),
    "float64": (lambda: trained(mlp().double(), sgd, doubles), rows, 10),
    "float16": (lambda: trained(mlp().half(), sgd, halves), rows, 15),
    "autocast": (lambda: trained(mlp(), sgd, narrow), rows, 5),
    "lstm": (lambda: trained(nn.LSTM(6, 5, batch_first=True), sgd, squares), sequences, 4),
    "transformer": (lambda: trained(attention(), optim.AdamW, scores), words, 4),
    "residual": (lambda: trained(residual(), sgd), images, 6),
    "clipped": (clipped, rows, 6),
    "averaging": (averaging, rows, 7),
    "two models": (two, rows, 8),
    "evaluating": (evaluating, rows, 5),
}
"""By name: what makes the step, what makes a batch, and the largest number of calls of CUDA."""


def values(tree: Any) -> list[bytes]:
    arrays = [leaf.array if isinstance(leaf, Tensor) else leaf for leaf in leaves(tree)]
    return [np.asarray(a.get() if hasattr(a, "get") else a).tobytes() for a in arrays]


def found(made: Made, batches: list[tuple[Any, ...]], is_compiled: bool) -> tuple[list[Any], int]:
    """What a step returns for these batches and the state behind them; the calls of CUDA of the
    last one."""
    function, models, optimizers = made
    step: Any = nnmpi.compile(function) if is_compiled else function
    results = list[Any]()
    for batch in batches:
        with noted_calls() as calls:
            results.append(step(*batch))
    if is_compiled:
        assert step.replays >= len(batches) - 2
    states = [model.state_dict() for model in models]
    of_optimizers = [optimizer.named_state() for optimizer in optimizers]
    return values([results, states, of_optimizers]), len(calls)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_replayed_as_graphs_with_the_same_bits(name: str) -> None:
    make, batch, most = STEPS[name]
    rng = np.random.default_rng(0)
    batches = [batch(rng) for _ in range(4)]
    (wanted, before), (got, calls) = (
        found(seeded(make), batches, is_compiled) for is_compiled in (False, True)
    )
    assert got == wanted
    assert calls <= min(most, before)


def seeded(make: Callable[[], Made]) -> Made:
    nnmpi.manual_seed(1)
    return make()


def test_a_wrong_label_raises_as_written_and_changes_nothing() -> None:
    function, (model,), _ = seeded(STEPS["sgd"][0])
    step, rng = nnmpi.compile(function), np.random.default_rng(0)
    batches = [rows(rng) for _ in range(3)]
    for batch in batches:
        step(*batch)
    before = values(model.state_dict())
    x, y = batches[0]
    with pytest.raises(ValueError, match="labels from 0 to 7 for 3 classes"):
        step(x, np.array([0, 1, 7, 0, 0, 0, 0, 0]))
    assert values(model.state_dict()) == before
    step(x, y)
    assert step.replays == 2


def test_ignored_labels_on_the_device_are_left_out_by_a_graph() -> None:
    """The host does not look at them, so the graph has the kernels that may ignore some."""
    batches = [on_device(np.random.default_rng(k)) for k in range(4)]
    batches[-1][1][2:4] = -100
    got, wanted = (found(seeded(STEPS["sgd"][0]), batches, on) for on in (True, False))
    assert got[0] == wanted[0]


def test_a_changed_learning_rate_and_factor_reach_a_graph() -> None:
    def results(is_compiled: bool) -> list[bytes]:
        nnmpi.manual_seed(1)
        model = mlp()
        optimizer = optim.Adam(model.parameters())

        def function(x: Any, y: Any, factor: float) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(Tensor(x)), y)
            loss.backward()
            optimizer.step(lr_factor=factor)
            return loss

        step: Any = nnmpi.compile(function) if is_compiled else function
        rng = np.random.default_rng(0)
        for k in range(7):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + k // 3)
            step(*rows(rng), 1 / (k + 1))
        assert not is_compiled or step.replays == 3
        return values(model.state_dict())

    assert results(True) == results(False)


def test_what_a_graph_cannot_contain_runs_as_written_and_is_named() -> None:
    model = mlp()

    def function(x: Any) -> Tensor:
        return model(Tensor(x)) + nnmpi.randn(8, 3, device="cuda")

    step = nnmpi.compile(function)
    x, _ = rows(np.random.default_rng(0))
    with pytest.warns(UserWarning, match="a CUDA graph cannot contain the step: .*not replayed"):
        step(x)
    step(x)
    assert step.replays == 0


def test_parameters_on_two_devices_are_refused() -> None:
    models = mlp(), nn.Linear(6, 3)
    with pytest.raises(ValueError, match="the step has parameters on several devices"):
        nnmpi.compile(lambda x: [m(x) for m in models])(rows(np.random.default_rng(0))[0])
