"""The values of a replica as one flat array, and means over replicas: of values and of buffers."""

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.precision import merge_loop
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.wire import wire_of


class ReplicaValues:
    """The values that this rank updates as a flat array, laid out as the optimizer state; their
    means over the ranks of other replicas that have the same part.

    16-bit parameters take part with their masters.
    """

    def __init__(
        self, layout: Layout, spec: TrainSpec, store: LocalStore, optimizer: Optimizer
    ) -> None:
        self._comm, self._on, self._optimizer = layout.axis["dp"], spec.task.on, optimizer
        self._model, self._algorithm = spec.part.model, spec.arrangement.algorithm
        self._store = store

    def values(self) -> Array:
        """Returns a copy of the values; masters take over 16-bit values that a user has changed."""
        rows = list[Array]()
        for _, x in self._optimizer.operands():
            if x.mixed.values is not None:
                merge_loop(x.values, x.mixed.values)
            rows.append(x.values)
        return self._on.xp.concatenate(rows)

    def average(self, row: Array) -> None:
        """Replaces a flat array by its mean over the replicas."""
        if self._comm.size > 1:
            wire_of(self._comm, self._on).start(row, self._algorithm).wait()
            row /= self._comm.size

    def average_buffers(self) -> None:
        """Replaces the floating-point buffers of the model by their means over the replicas."""
        average_buffers(self._comm, self._model)

    def assign(self, row: Array) -> None:
        """Copies a flat array to the values, and rounds it to the 16-bit ones beside them."""
        for span, x in self._optimizer.operands():
            x.values[...] = row[span]
            if x.mixed.values is not None:
                x.mixed.values[...] = x.values
        self._store.settle()  # ranks along cp may share the values, and each writes a part


def average_buffers(comm: Comm, model: Module) -> None:
    """Replaces floating-point buffers by their means over the ranks, added in the order of ranks.

    Integer buffers, such as num_batches_tracked, stay as they are.
    """
    buffers = [b for _, b in model.named_buffers() if b.dtype.kind == "f"]
    of_ranks = gather_objects(comm, [*map(backend.to_host, buffers)]) if buffers else []
    for buffer, *values in zip(buffers, *of_ranks, strict=True):
        mean = np.mean(values, axis=0, dtype=float)
        buffer[...] = backend.of(buffer).asarray(mean, buffer.dtype)
