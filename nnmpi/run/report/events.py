"""What the events of a run say of it."""

import math
from typing import TYPE_CHECKING

from nnmpi.metrics import ACCURACY, Sums
from nnmpi.run.report.text import Event

if TYPE_CHECKING:
    from nnmpi.run.trainer import Trainer


def start_event(trainer: "Trainer") -> Event:
    """The first event."""
    d, c = trainer.dataset, trainer.config
    slowed = {"slow_rank": c.slow_rank, "jitter": c.jitter}
    return {
        "event": "start",
        "model": c.model,
        "parameters": sum(math.prod(p.place.shape) for p in trainer.model.parameters()),
        "data": d.name,
        "train_samples": len(d.train.y),
        "test_samples": len(d.test.y),
        "note": d.note,
        "steps": trainer.total_steps,
        "batch_size": c.batch_size,
        "dtype": c.dtype,
        "device": trainer.on.name,
        "seed": c.seed,
        "ranks": trainer.comm.size,
        "sync": c.sync,
        **({"tp": c.tp} if c.tp > 1 else {}),
        **{name: value for name, value in slowed.items() if value},
        **trainer.strategy.describe(),
    }


def measured(train: Sums, test: Sums) -> Event:
    """Losses and metrics of an epoch; the accuracy is beside the loss, others are under a key."""
    means = test.means
    accuracy = {ACCURACY: means.pop(ACCURACY)} if ACCURACY in means else {}
    others = {"metrics": means} if means else {}
    return {"loss": train.mean_loss, "test_loss": test.mean_loss, **accuracy, **others}
