"""What a run will take, for `--dry-run`: bytes counted where known, measured where not."""

import tracemalloc

import numpy as np

from nnmpi.data import Batch
from nnmpi.nn.passes import Pass
from nnmpi.report import Event
from nnmpi.trainer import Trainer


def summary(trainer: Trainer) -> Event:
    """Model, parameters, memory and steps of a run that has not begun; it trains nothing."""
    parameters = sum(p.data.nbytes for p in trainer.model.parameters())
    sums = sum(s.nbytes for s in trainer.optimizer.state)
    return {
        **trainer.describe(),
        "event": "dry-run",
        "layers": repr(trainer.model),
        "parameter_bytes": parameters,
        "gradient_bytes": parameters,
        "optimizer_bytes": sums,
        "activation_bytes": activation_bytes(trainer),
        "data_bytes": sum(a.nbytes for a in (*trainer.dataset.train, *trainer.dataset.test)),
        "epochs": trainer.config.epochs,
        "steps_per_epoch": len(trainer.train),
    }


def activation_bytes(trainer: Trainer) -> int:
    """The most that one forward and backward pass of a rank holds at a time, on the host."""
    parts = trainer.comm.size * trainer.config.micro_batches
    rows = next(iter(trainer.train.batches(0)))
    batch = trainer.train.gather(rows[: -(-len(rows) // parts)])
    state = trainer.model.state_dict()
    _pass(trainer, batch)
    tracemalloc.start()
    _pass(trainer, batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    trainer.optimizer.zero_grad()
    trainer.model.load_state_dict(state)  # running statistics have moved
    return peak


def _pass(trainer: Trainer, batch: Batch) -> None:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        trainer.loss(trainer.task.forward(batch.x, Pass(0, batch.samples)), batch.y).backward()
