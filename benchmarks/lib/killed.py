"""Ranks that another process kills: they train with the command's options, and tell their process
ids in a folder."""

import os
import sys
import time
from pathlib import Path

from nnmpi import Tensor, nn, train
from nnmpi.comm import ended

PAUSE = 0.02  # seconds of a stage and micro-batch


class Pause(nn.Module):
    """Sleeps, as if it computed on a processor of its own, and returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns x, later."""
        time.sleep(PAUSE)
        return x


def model() -> nn.Module:
    """Four stages of 16,000 parameters and more, which take equally long."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 128)]
    for _ in range(3):
        layers += [Pause(), nn.ReLU(), nn.Linear(128, 128)]
    return nn.Sequential(*layers, Pause(), nn.ReLU(), nn.Linear(128, 10))


def main(folder: str, *options: str) -> None:
    """Trains with these options."""
    Path(folder, f"pid.{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(f"{os.getpid()}")
    sys.exit(ended(train.command(options)))
