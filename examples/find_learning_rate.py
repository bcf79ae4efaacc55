"""A learning-rate finder: mpirun -n 2 python examples/find_learning_rate.py

A schedule raises the rate in each step, and a callback records the loss: it falls at first, and
rises once the rate is too large.
"""

from typing import Any

import numpy as np

import nnmpi


class FindRate:
    """Records the loss at each rate; ends the run when the loss is 4 times the smallest one."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []

    def on_step(self, trainer: nnmpi.Trainer, event: dict[str, Any]) -> None:
        self.rates.append(trainer.last_lr)
        self.losses.append(event["loss"])
        if event["loss"] > 4 * min(self.losses):
            trainer.stop()


if __name__ == "__main__":
    finder = FindRate()
    config = nnmpi.Config(data="iris", model="iris-mlp", epochs=60, lr=1e-5, quiet=True)
    nnmpi.Trainer(config, schedule=lambda step: 1.2**step, callbacks=[finder]).fit()
    print(f"take about {finder.rates[int(np.argmin(finder.losses))] / 10:.1g}")
