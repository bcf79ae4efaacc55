"""Early stopping: mpirun -n 2 python examples/early_stopping.py

Ends a run whose test loss no longer falls, and saves the best model to a file. Every rank gets the
same test loss, so all ranks stop together. A checkpoint contains the callback's state.
"""

import tempfile
from pathlib import Path
from typing import Any

import nnmpi


class EarlyStop:
    """Saves the model when the test loss falls; ends the run after `patience` evaluations without.

    It is called at the end of each epoch, and every `evaluate_every` steps.
    """

    def __init__(self, path: str, patience: int = 3) -> None:
        self.path, self.patience, self.best, self.since = path, patience, float("inf"), 0

    def on_evaluate(self, trainer: nnmpi.Trainer, event: dict[str, Any]) -> None:
        self.since += 1
        if event["test_loss"] < self.best:
            self.best, self.since = event["test_loss"], 0
            trainer.save(self.path)
        if self.since == self.patience:
            trainer.stop()

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.since = state["best"], state["since"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        stop = EarlyStop(str(Path(folder) / "best.safetensors"))
        config = nnmpi.Config(data="iris", model="iris-mlp", epochs=60, lr=0.05, quiet=True)
        result = nnmpi.Trainer(config, callbacks=[stop]).fit()
    print(f"{result['steps']} steps, best test loss {stop.best:.4f}")
