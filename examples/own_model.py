"""A model of your own on any number of ranks: mpirun -n 2 python examples/own_model.py

A small residual network on the digits. `build` makes the model; the Trainer does the rest.
"""

import nnmpi
from nnmpi import nn


class Residual(nn.Module):
    """x + f(x), where f is two convolutions."""

    def __init__(self, channels: int) -> None:
        self.f = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return nnmpi.relu(x + self.f(x))


def build() -> nn.Module:
    """The digits are images of 1 x 8 x 8, in 10 classes."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(Residual(32), Residual(32), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 2 * 2, 10)),
    )


if __name__ == "__main__":
    config = nnmpi.Config(data="digits", epochs=2, quiet=True)
    nnmpi.Trainer(config, build=build).fit()
