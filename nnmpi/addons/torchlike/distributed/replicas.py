"""Compares the replicas of models, bit by bit."""

from typing import Any

import numpy as np

from nnmpi.addons.torchlike.distributed.group import Group, array_of, joined, rows_of
from nnmpi.arrays.backend import to_host


class ReplicaError(ValueError):
    """Raised on all ranks if replicas of a model differ."""


def verify(group: Group = None) -> str:
    """Compares the parameters and buffers of all DistributedDataParallel models of a group with
    those of its first rank, bit by bit, and returns a line that says how many are equal. All ranks
    of the group call it; if any differ, all raise a ReplicaError, which names the first."""
    comm, members = rows_of(group).comm, joined(group)
    models = [model for model in (ref() for ref in members.models) if model is not None]
    if not models:
        raise ValueError(
            f"verify: {members} have no DistributedDataParallel model, so there is nothing to "
            "compare"
        )
    tensors = [tensor for model in models for tensor in _named_arrays(model.module)]
    # by rank and tensor: whether bits differ, and by how much
    table = np.zeros((comm.size, len(tensors), 2))
    for i, (_, array) in enumerate(tensors):
        table[comm.rank, i] = _difference(comm, to_host(array))
    comm.all_gather(table.reshape(-1))
    differing = np.argwhere(table[:, :, 0].T)
    if len(differing):
        i, rank = differing[0]
        raise ReplicaError(
            f"{tensors[i][0]} of rank {rank} differs from that of rank 0 by up to "
            f"{table[rank, i, 1]:.3g} (and {len({*differing[:, 0].tolist()})} of {len(tensors)} "
            "parameters and buffers differ on some rank): every rank has to make the same updates, "
            "of gradients that a backward pass through the DistributedDataParallel model has "
            "averaged"
        )
    return f"{members}: {len(tensors)} parameters and buffers are equal on all, bit by bit"


def _named_arrays(module: Any) -> list[tuple[str, Any]]:
    named = (*module.named_parameters(), *module.named_buffers())
    return [(name, array_of(value, "verify")) for name, value in named]


def _difference(comm: Any, array: np.ndarray) -> tuple[bool, float]:
    first = np.array(array, order="C")
    comm.broadcast(first, 0)
    if first.tobytes() == array.tobytes():
        return False, 0.0
    with np.errstate(invalid="ignore"):
        return True, float(np.abs(first.astype(float) - array.astype(float)).max())
