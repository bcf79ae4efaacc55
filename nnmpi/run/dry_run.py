"""--dry-run: model, steps and memory of a run; activations are measured, the rest is computed."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from nnmpi.autograd.functional import tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.data.inputs import arrays, zeros
from nnmpi.nn import Sequential
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import Pass
from nnmpi.nn.store import FlatStore
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.boundary import zeros as zeros_of
from nnmpi.parallel.strategy import Memory
from nnmpi.parallel.tensor.traffic import bytes_a_sample, loss_bytes_a_sample
from nnmpi.run.report import Event
from nnmpi.run.trainer import Trainer


def summary(trainer: Trainer) -> Event:
    """The dry-run event; every rank calls it."""
    parameters = parameter_bytes(trainer.part.parameters)
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
        "data_bytes": sum(
            array.nbytes for x, y in trainer.dataset[1:3] for array in (*arrays(x), y)
        ),
        "counted": f"gradients and optimizer: all ranks of this node ({ranks}); the rest: one rank",
        "epochs": -(-trainer.total_steps // len(trainer.train)),
        "steps_per_epoch": len(trainer.train),
        **sharding(trainer),
    }


def parameter_bytes(parameters: Sequence[Parameter]) -> int:
    """Of their values; of those that are gathered when they are used, what this rank keeps."""
    stores = {p.store for p in parameters if isinstance(p.store, FlatStore) and p.store.rotates}
    whole = sum(p.size * p.dtype.itemsize for p in parameters if p.store not in stores)
    return whole + sum(store.parameter_bytes() for store in stores)


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
    with _as_it_was(trainer):
        _pass(trainer, batch)
        tracemalloc.start()
        _pass(trainer, batch)
        peak = tracemalloc.get_traced_memory()[1]
        trainer.comm.barrier()  # ranks that are threads share a trace: it must not end in a pass
        tracemalloc.stop()
        trainer.comm.barrier()
    return peak


@contextmanager
def _as_it_was(trainer: Trainer) -> Iterator[None]:
    """Afterwards there are no gradients, and running statistics are as before."""
    buffers = [(array, array.copy()) for _, array in trainer.model.named_buffers()]
    yield
    trainer.optimizer.zero_grad()
    for array, before in buffers:
        array[...] = before


def sharding(trainer: Trainer) -> Event:
    """Which layer is sharded how, and what a rank sends for it in a step; every rank calls it.

    The ranks of a pipeline send different amounts: it is that of the one that sends most.
    """
    found, layout = trainer.sharding, trainer.strategy.layout
    if not found.layers:
        return {}
    tp, share = layout.axis["tp"], trainer.config.batch_size / layout.axis["dp"].size
    most = np.zeros(layout.all.size)
    most[layout.all.rank] = share * all_or_none(trainer.comm, lambda: _sent_a_sample(trainer))
    layout.all.all_gather(most)
    return {
        "sharded_layers": [
            {
                "layer": layer.path,
                "kind": layer.kind,
                "how": layer.how,
                "weight": list(layer.sizes),
                "channels": [b - a for a, b in pairwise(layer.bounds)],
                "messages": layer.messages,
            }
            for layer in found.layers
        ],
        "tensor_bytes": round(float(most.max())),
        "tensor_bytes_in_messages": _measured(trainer, share),
        "through_memory": len(tp.node()) == tp.size,
    }


def _sent_a_sample(trainer: Trainer) -> float:
    """The bytes that this rank sends for a sample, by formula."""
    part, found, ranks = trainer.part, trainer.sharding, trainer.config.tp
    total = 0.0
    trainer.model.eval()
    for s, stage in part.stages.items():
        (samples,) = arrays(zeros(trainer.dataset.train.x, 2, trainer.config.dtype))
        x = tensor(zeros_of(trainer.boundaries[s - 1][0], 2) if s else samples, on=trainer.on)
        x.requires_grad = s > 0
        with np.errstate(over="ignore", invalid="ignore"):
            assert isinstance(stage, Sequential)
            total += bytes_a_sample(stage, x, found, ranks)
        if s == part.stage_count - 1:
            total += loss_bytes_a_sample(found, x.dtype.itemsize, ranks)
    trainer.model.train()
    return total


def _measured(trainer: Trainer, share: float) -> int | None:
    """The bytes that this rank sends in messages in a step, from a pass over some samples.

    None for a pipeline, whose stages do not run alone.
    """
    if trainer.part.stage_count > 1:
        return None
    rows = next(iter(trainer.train.batches(0)))
    batch = trainer.train.gather(rows[: max(round(share), 2)])
    ledger = trainer.strategy.layout.axis["tp"].ledger
    before = sum(ledger.sent_bytes)
    with _as_it_was(trainer):
        _pass(trainer, batch)
    sent = sum(ledger.sent_bytes) - before
    return round(sent / len(batch.y) * share)


def _pass(trainer: Trainer, batch: Batch) -> None:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scores = trainer.task.forward(batch.x, Pass(0, batch.samples))
        trainer.task.objective(scores, batch.y).backward()
