"""Means over replicas: of the values that an optimizer updates, as one flat array, and of
buffers."""

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.optim import Optimizer
from nnmpi.parallel.wire import wire_of


class ReplicaMean:
    """The values that this rank updates as a flat array, laid out as the optimizer state, and their
    means over the ranks of other replicas that have the same part.

    16-bit parameters take part with their masters.
    """

    def __init__(self, comm: Comm, on: Backend, optimizer: Optimizer) -> None:
        self._comm, self._on, self._optimizer = comm, on, optimizer

    def values(self) -> Array:
        """Returns a copy of the values."""
        rows = [x.values for _, x in self._optimizer.values()]
        return self._on.xp.concatenate(rows)

    def of(self, row: Array, algorithm: str) -> None:
        """Replaces a flat array by its mean over the replicas."""
        if self._comm.size > 1:
            wire_of(self._comm, self._on).start(row, algorithm).wait()
            row /= self._comm.size

    def assign(self, row: Array) -> None:
        """Copies a flat array to the values, and rounds it to the 16-bit ones beside them."""
        for span, x in self._optimizer.values():
            x.values[...] = row[span]
            if x.mixed.values is not None:
                x.mixed.values[...] = x.values


def average_buffers(comm: Comm, model: Module) -> None:
    """Replaces floating-point buffers by their means over the ranks, added in the order of ranks.

    Integer buffers, such as num_batches_tracked, stay as they are.
    """
    buffers = [b for _, b in model.named_buffers() if b.dtype.kind == "f"]
    if not buffers:
        return
    row = np.concatenate([backend.to_host(b).ravel() for b in buffers])
    rows = np.empty((comm.size, row.size))
    rows[comm.rank] = row
    comm.all_gather(rows, "halving")
    ends = np.cumsum([b.size for b in buffers])[:-1]
    for buffer, mean in zip(buffers, np.split(rows.mean(0), ends), strict=True):
        buffer[...] = backend.of(buffer).asarray(mean.reshape(buffer.shape), buffer.dtype)
