"""Training where every array is a device's: at most one wait a step, and NumPy's numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.comm import comm_self
from nnmpi.io.output import NullReport
from nnmpi.nn.models import MODELS, mlp
from nnmpi.parallel import refusals

pytestmark = needs_device
STEPS = 4
CLASSES = 10


class Task(NamedTuple):
    """A model, one batch's shape and what it learns by."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    optimizer: str = "adam"
    loss: str = "CrossEntropyLoss"


def words() -> nn.Module:
    """Integers in: rows of an embedding, normalised and averaged over the words."""
    return nn.Sequential(
        *(
            nn.Embedding(20, 8, padding_idx=0),
            nn.LayerNorm(8),
            nn.Linear(8, 8),
            nn.GELU(),
            nn.Dropout(0.2),
        ),
        *(nn.Flatten(), nn.Linear(24, CLASSES), nn.LogSoftmax()),
    )


def shapes() -> nn.Module:
    """The kinds of layers that no model of the table has."""
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, 2, 1), nn.MaxPool2d(3, 1, 1), nn.Sigmoid(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 5, 2), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(20), nn.Linear(20, CLASSES)),
    )


def norms() -> nn.Module:
    """Normalisations of images and sequences, and activations without an op in NumPy."""
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.SiLU(), nn.Flatten(2), nn.Identity()),
        *(nn.BatchNorm1d(6, momentum=None), nn.LeakyReLU(), nn.Flatten(), nn.Linear(96, CLASSES)),
        nn.LayerNorm(CLASSES, bias=False),
    )


TASKS = {
    "norms": Task(norms, (3, 2, 6, 6)),
    "mlp": Task(lambda: mlp(12, 16, CLASSES), (6, 3, 4)),
    "mlp, sgd": Task(lambda: mlp(12, 16, 8, CLASSES), (6, 12), "sgd"),
    "mlp, rmsprop": Task(lambda: mlp(12, 16, 8, CLASSES), (6, 12), "rmsprop"),
    "mlp, muon": Task(lambda: mlp(12, 16, 8, CLASSES), (6, 12), "muon"),
    "digits-cnn": Task(MODELS["digits-cnn"], (5, 1, 8, 8), "adamw"),
    "words": Task(words, (6, 3), loss="NLLLoss"),
    "shapes": Task(shapes, (4, 2, 12, 12), "sgd", "MSELoss"),
}


class Run(NamedTuple):
    """What one training run shows: the loss of every step, and the end."""

    losses: list[float]
    state: dict[str, np.ndarray]


def batch(task: Task, step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    n = task.shape[0]
    x = rng.integers(0, 20, task.shape) if task.make is words else rng.standard_normal(task.shape)
    y = rng.standard_normal((n, CLASSES)) if task.loss == "MSELoss" else rng.integers(0, CLASSES, n)
    return x, y


def train(task: Task, on: Backend, labels_on: Backend) -> Run:
    model = task.make().to(np.float64, on)
    loss_of = getattr(nn, task.loss)()
    options: dict[str, Any] = {"momentum": 0.9} if task.optimizer == "sgd" else {}
    opt = optim.rules.optimizer_named(task.optimizer)(
        model.parameters(), lr=0.01, weight_decay=0.01, **options
    )
    run = Run([], {})
    for step in range(STEPS):
        x, y = batch(task, step)
        inputs, labels = nnmpi.tensor(x, on=on), labels_on.asarray(y)
        with waits(0 if on is CPU else 1):
            loss = loss_of(model(inputs), labels)
            opt.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 0.5)
            opt.step()
            run.losses.append(loss.item())
    for array in (*(p.array for p in model.parameters()), *(t.array for t in model.buffers())):
        assert type(array) is on.xp.ndarray
    run.state.update((name, t.numpy()) for name, t in model.state_dict().items())
    return run


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TASKS)
def test_a_step_waits_once_and_computes_what_numpy_does(name: str) -> None:
    """Once for loss.item(); labels may be on the host, where they are checked."""
    task = TASKS[name]
    here, there = train(task, CPU, CPU), train(task, DEVICE, DEVICE)
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-12)
    assert len(set(here.losses)) == STEPS
    for key, expected in here.state.items():
        error = np.abs(there.state[key] - expected).max()
        assert error <= 1e-10 * np.abs(expected).max(), key


def test_evaluation_waits_for_its_answer_only() -> None:
    model = MODELS["digits-cnn"]().to(on=DEVICE).eval()
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype("float32")
    inputs = nnmpi.tensor(x, on=DEVICE)
    with waits(1), nnmpi.no_grad():
        best = model(inputs).argmax(1).numpy()
    np.testing.assert_array_equal(
        best, MODELS["digits-cnn"]().eval()(nnmpi.tensor(x)).argmax(1).numpy()
    )


def test_a_model_moves_there_and_back_in_the_middle_of_training() -> None:
    """Weights, gradients, statistics and the optimizer's sums come along."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 1, 8, 8)), rng.integers(0, 10, 5)
    ends = []
    for places in ((CPU, CPU, CPU), (CPU, DEVICE, CPU)):
        model = MODELS["digits-cnn"]().to(np.float64)
        opt = optim.Adam(model.parameters())
        for on in places:
            model.to(on=on)
            nn.CrossEntropyLoss()(model(nnmpi.tensor(x, on=on)), y).backward()
            opt.step()  # gradients add up over the steps: nothing clears them
        ends.append(model.state_dict())
    for key, expected in ends[0].items():
        assert np.abs(ends[1][key] - expected).max() <= 1e-10 * np.abs(expected).max(), key


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 0.1},
        {"micro_batches": 3},
        {"verify": True},
        {"verify": True, "dtype": "float64"},
    ],
    ids=str,
)
def test_a_trainer_on_a_device_agrees_with_numpy(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation, saving and the digest included; --verify, which one rank has no use for, too."""
    monkeypatch.setattr(refusals, "REFUSALS", ())
    rng = np.random.default_rng(0)
    data = rng.standard_normal((40, 4)), np.arange(40) % 3

    def run(on: Backend) -> dict[str, np.ndarray]:
        monkeypatch.setattr(backend, "get", lambda device: on)
        path = str(tmp_path / f"{on.name}.safetensors")
        config = nnmpi.Config(steps=3, batch_size=9, save=path, **options)
        trainer = nnmpi.Trainer(config, normed, data, comm_self())
        assert trainer.fit(NullReport())["skipped_steps"] == 0
        return nnmpi.load(path)

    wanted, found = run(CPU), run(DEVICE)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def normed() -> nn.Module:
    """No bias before BatchNorm: its gradient is 0 but for rounding, which Adam makes large."""
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3))
