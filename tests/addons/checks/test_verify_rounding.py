"""--verify: rounding is no difference, and a fault of its size elsewhere is one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.runs import rows

from nnmpi import Config, Trainer, nn
from nnmpi.addons.checks.verify import VerifyError
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.parallel.stores.local import LocalStore


def differences(**options: Any) -> list[dict[str, float]]:
    """The largest differences that two ranks have told of a run."""
    config = Config(**options, verify=True)
    ended = threads.run(2, lambda comm: Trainer(config, comm=comm).fit(NullReport()))
    return [event["largest_differences"] for event in ended]


def test_in_float32_steps_are_compared_one_by_one() -> None:
    """Two trainings would part: after 60 steps by more than 1e-3 with this seed."""
    for found in differences(model="digits-cnn", steps=60):
        assert 0 < found["gradients_relative"] < 2e-2
        assert found["parameters_relative"] < 1e-6
        assert found["loss_relative"] < 1e-4


def test_rounding_is_no_difference_where_all_is_learnt() -> None:
    """The loss comes down to 1e-4 of what it was, and its rounding does not."""
    data, sizes = "synthetic:1x8x8:4:30000", {"batch_size": 16, "steps": 120}
    for found in differences(model="mlp:64-512-4", data=data, **sizes):
        assert found["loss_relative"] < 1e-5


def normalised() -> nn.Sequential:
    """Of two samples a gradient of zero goes to the first layer."""
    first = nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5)
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(5, 3))


def normalised_twice() -> nn.Sequential:
    """The second mean is zero, and so is the gradient of the first layer's bias."""
    return nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("build", "batch_size"), [(normalised, 2), (normalised_twice, 14)])
def test_rounding_is_no_difference_where_the_true_number_is_zero(
    build: Callable[[], nn.Module], batch_size: int, dtype: str
) -> None:
    options = {"optimizer": "rmsprop", "lr": 1e-2, "batch_size": batch_size, "dtype": dtype}
    config = Config(verify=True, steps=14, **options)
    ended = threads.run(2, lambda comm: Trainer(config, build, rows(), comm).fit(NullReport()))
    assert [event["event"] for event in ended] == ["done"] * 2


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def test_rounding_is_no_difference_where_targets_are_met() -> None:
    """The layers learn whole numbers, and then its loss and its gradient are rounding alone."""
    x = np.random.default_rng(0).integers(-3, 4, (48, 4)).astype(np.float32)
    data = x, x @ np.array([[1], [-2], [3], [0]], np.float32)
    options = {"optimizer": "rmsprop", "lr": 0.02, "batch_size": 16, "tp": 2}
    config = Config(verify=True, dtype="float64", steps=200, **options)

    def rank(comm: Comm) -> object:
        trainer = Trainer(config, two_layers, data, comm, loss=nn.MSELoss())
        return trainer.fit(NullReport())["event"]

    assert threads.run(2, rank) == ["done"] * 2


@pytest.mark.parametrize("path", ["0.bias", "3.bias"])
def test_a_wrong_gradient_is_found_where_the_true_one_is_zero_too(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = LocalStore.finish

    def spoilt(store: LocalStore, b: int) -> None:
        finish(store, b)
        if store.dp.size > 1 and not b:
            wrong = next(p for p in store.parameters if p.place.path == path)
            wrong.grad_memory[...] += 1e-8

    monkeypatch.setattr(LocalStore, "finish", spoilt)
    config = Config(verify=True, batch_size=14, dtype="float64", allreduce="ring")
    with pytest.raises(VerifyError, match="step 1: gradients of the layout differ"):
        threads.run(
            2, lambda comm: Trainer(config, normalised_twice, rows(), comm).fit(NullReport())
        )
