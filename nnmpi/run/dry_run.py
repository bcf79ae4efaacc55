"""--dry-run: model, steps and memory of a run; activations are measured, the rest is computed."""

import tracemalloc

import numpy as np

from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.nn.passes import Pass
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.strategy import Memory
from nnmpi.run.report import Event
from nnmpi.run.trainer import Trainer


def summary(trainer: Trainer) -> Event:
    """The dry-run event; every rank calls it."""
    parameters = sum(p.data.nbytes for p in trainer.part.parameters)
    ranks, memory = on_node(trainer.comm, plan.memory(trainer.strategy))
    activations = all_or_none(trainer.comm, lambda: activation_bytes(trainer))
    return {
        **trainer.describe(),
        "event": "dry-run",
        "layers": repr(trainer.model),
        "parameter_bytes": parameters,
        "gradient_bytes": memory.gradients,
        "optimizer_bytes": memory.optimizer,
        "activation_bytes": activations,
        "data_bytes": sum(a.nbytes for a in (*trainer.dataset.train, *trainer.dataset.test)),
        "counted": f"gradients and optimizer: all ranks of this node ({ranks}); the rest: one rank",
        "epochs": trainer.config.epochs,
        "steps_per_epoch": len(trainer.train),
    }


def on_node(comm: Comm, memory: Memory) -> tuple[int, Memory]:
    """The number of ranks of this node, and the sum over them; every rank calls it."""
    rows = np.zeros((comm.size, len(memory)), np.int64)
    rows[comm.rank] = memory
    comm.all_gather(rows)
    node = comm.node()
    return len(node), Memory(*rows[list(node)].sum(axis=0).tolist())


def activation_bytes(trainer: Trainer) -> int:
    """The peak host memory of a forward and backward pass on one rank's part of a batch.

    That of a pipeline is predicted from the profile: the most of any rank.
    """
    if trainer.part.stage_count > 1:
        most: int = max(trainer.part.facts["peak_activation_bytes"])
        return most
    parts = plan.pieces(trainer.config, trainer.comm.size)
    rows = next(iter(trainer.train.batches(0)))
    share = -(-len(rows) // parts)
    batch = trainer.train.gather(rows[: max(share, 2)])  # BatchNorm needs two
    state = trainer.model.state_dict()
    _pass(trainer, batch)
    tracemalloc.start()
    _pass(trainer, batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    trainer.optimizer.zero_grad()
    trainer.model.load_state_dict(state)  # restores running statistics
    return peak


def _pass(trainer: Trainer, batch: Batch) -> None:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        trainer.loss(trainer.task.forward(batch.x, Pass(0, batch.samples)), batch.y).backward()
