"""Data of your own: mpirun -n 2 python examples/own_data.py

Three spirals, as arrays x (samples, features) and y (a class for each). Every rank has all of
them; each computes its share of every batch.
"""

import numpy as np

import nnmpi
from nnmpi import nn


def spirals(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on three arms, with noise: (3 n, 2) and their arms."""
    rng = np.random.default_rng(seed)
    t = np.tile(np.linspace(0.1, 1, n), 3)
    arm = np.repeat(np.arange(3), n)
    angle = 4 * t + 2 * np.pi / 3 * arm + rng.normal(0, 0.1, 3 * n)
    return np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1), arm


def build() -> nn.Module:
    """A perceptron with two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    )


if __name__ == "__main__":
    data = (*spirals(500, seed=0), *spirals(100, seed=1))  # for training and for testing
    config = nnmpi.Config(epochs=6, lr=0.01, quiet=True)
    nnmpi.Trainer(config, build=build, data=data).fit()
