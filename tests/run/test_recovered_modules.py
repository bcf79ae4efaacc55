"""What modules say is their state outlives their ranks."""

from typing import Any

import numpy as np
import pytest
from helpers.training import recovered
from helpers.training.acts import KillsAt

import nnmpi
from nnmpi import nn
from nnmpi.nn.place import StateArray

COMMON: dict[str, Any] = {
    "batch_size": 24, "steps": 6, "seed": 3, "lr": 0.05, "optimizer": "adam", "check_copies": 0,
}  # fmt: skip


class Noisy(nn.Module):
    """Adds noise of a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.shift = np.random.default_rng(7), nn.Parameter(np.zeros(1, "float32"))

    def forward(self, x: Any) -> Any:
        noise = self.rng.standard_normal(x.shape).astype("float32") if self.training else 0.0
        return x + noise + self.shift

    def state_arrays(self) -> list[StateArray]:
        return [nnmpi.generator_state("rng", self.rng)]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_state_of_a_module_outlives_its_rank(lost: int) -> None:
    """With backups; each stage draws from a generator of its own."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Noisy(), nn.Linear(10, 10), Noisy())

    def losses(callbacks: list[object]) -> list[float]:
        options = {"model": "build", "build": build, "pp": 2, "cut": "3", "backup": 1}
        left = recovered.run_of(2, {**COMMON, **options, "callbacks": callbacks}, {})
        return next([loss for _, loss in of.told.steps] for of in left if of is not None)

    np.testing.assert_allclose(losses([KillsAt(lost, 4)]), losses([]), rtol=1e-5)
