"""Augmentation in the model: mpirun -n 2 python examples/own_augmentation.py

`nnmpi.random` draws random numbers for each sample, which are the same in every layout.
"""

import nnmpi
from nnmpi import nn


class Brightness(nn.Module):
    """Multiplies each image by a random factor from 0.8 to 1.2."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        if not self.training:
            return x
        return x * (0.8 + 0.4 * nnmpi.random(self, (len(x), 1, 1, 1), like=x))


def build() -> nn.Module:
    """The digits are images of 1 x 8 x 8, in 10 classes."""
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    return nn.Sequential(Brightness(), *layers)


if __name__ == "__main__":
    config = nnmpi.Config(data="digits", epochs=2, augment="crop:1", quiet=True)
    print(f"accuracy {nnmpi.Trainer(config, build).fit()['accuracy']:.4f}")
