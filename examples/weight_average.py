"""A moving average of the weights: mpirun -n 2 python examples/weight_average.py

The average over the last steps is often better than the last weights. Each rank averages the
parameters of its optimizer, so this works in every layout; with ZeRO, `gathered_parameters` gathers
their shards. Running statistics of BatchNorm are not parameters: those of the last step are kept.
"""

from typing import Any

import numpy as np

import nnmpi


class Average:
    """A callback that keeps the average of the parameters."""

    def __init__(self, decay: float = 0.95) -> None:
        self.decay = decay
        self.means: list[np.ndarray] = []

    def on_step(self, trainer: nnmpi.Trainer, event: dict[str, Any]) -> None:
        with trainer.gathered_parameters():
            values = [p.data for p in trainer.optimizer.parameters]
            self.means = self.means or [value.copy() for value in values]
            for mean, value in zip(self.means, values, strict=True):
                mean += (1 - self.decay) * (value - mean)

    def put_into(self, trainer: nnmpi.Trainer) -> None:
        """Every rank calls it, after the run."""
        with trainer.gathered_parameters():
            for p, mean in zip(trainer.optimizer.parameters, self.means, strict=True):
                p.data[...] = mean


if __name__ == "__main__":
    average = Average()
    config = nnmpi.Config(
        data="digits", epochs=4, batch_size=16, lr_schedule="constant", quiet=True
    )
    trainer = nnmpi.Trainer(config, callbacks=[average])
    trainer.fit()
    print(f"last weights: test loss {trainer.evaluate().mean_loss:.4f}")
    average.put_into(trainer)
    print(f"their average: test loss {trainer.evaluate().mean_loss:.4f}")
