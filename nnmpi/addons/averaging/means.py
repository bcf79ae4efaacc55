"""A replica's parameters as a flat array, and means over replicas."""

from collections.abc import Container, Iterator

import numpy as np

from nnmpi.addons.compression.blocks import PACKINGS, start_mean
from nnmpi.addons.compression.compressed import BLOCK
from nnmpi.addons.compression.exchange import Exchange, Phases
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.precision import merge_loop
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.store import Operands
from nnmpi.optim import Optimizer
from nnmpi.optim.replica_state import DIFFERENCE
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.wire import Transfer, Wire, wire_of


class ReplicaValues:
    """The values of a replica that this rank updates, as a flat array, and means of such arrays
    over the ranks along dp, which have the same part of the model. 16-bit parameters are averaged
    by their float32 masters. `of` are the indices of the parameters to average, which are sent as
    --outer-dtype; default: all."""

    def __init__(
        self,
        layout: Layout,
        spec: TrainSpec,
        store: LocalStore,
        optimizer: Optimizer,
        of: Container[int] | None = None,
    ) -> None:
        self._comm, self._on, self._optimizer = layout.axis["dp"], spec.task.on, optimizer
        self._model, self._algorithm = spec.part.model, spec.arrangement.algorithm
        self._store, self._of = store, of
        self._form = spec.arrangement.config.outer_dtype if of is not None else None
        # copies on ranks along tp or pp are rounded alike in blocks without other parameters
        self._align = BLOCK if self._form == "int8" else 1

    def operands(self) -> Iterator[tuple[slice, slice, Operands]]:
        """Yields (slice of the flat array, slice of a state array, operands) for each piece of
        memory that the optimizer updates on this rank."""
        at = 0
        for span, x in self._optimizer.operands(self._of):
            yield slice(at, at + len(x.values)), span, x
            at += -(-len(x.values) // self._align) * self._align

    def values(self) -> Array:
        """Returns a copy of this replica's values: of 16-bit parameters the float32 masters, into
        which values that a user has changed are copied first."""
        n = max((here.stop for here, *_ in self.operands()), default=0)
        row = self._on.xp.zeros(n, self._store.updated_dtype)
        for here, _, x in self.operands():
            if x.mixed.values is not None:
                merge_loop(x.values, x.mixed.values)
            row[here] = x.values
        return row

    def start_average(self, row: Array) -> Transfer:
        """Starts to replace the flat array `row` by its mean over the replicas, sent as
        --outer-dtype; returns the transfer. No other exchange may be in flight on the Comm."""
        wire = wire_of(self._comm, self._on)
        if self._form is not None and self._form in PACKINGS and wire.size > 1:
            return start_mean(row, wire, self._form)
        return Exchange(self._mean(row, wire), alone=True)

    def _mean(self, row: Array, wire: Wire) -> Phases:
        if wire.size > 1:
            sent = row.astype(self._form or row.dtype, copy=False)
            yield wire.start(sent, self._algorithm)
            sent /= wire.size
            if sent is not row:
                row[...] = sent
        return row

    def average(self, row: Array) -> None:
        """Replaces `row` by its mean over the replicas, and waits for it."""
        self.start_average(row).wait()

    def average_buffers(self) -> None:
        """Replaces the floating-point buffers of the model by their means over the replicas."""
        average_buffers(self._comm, self._model)

    def assign(self, row: Array) -> None:
        """Copies the flat array `row` to the values that this rank updates, and rounds them to 16
        bits where parameters have 16-bit values."""
        for here, _, x in self.operands():
            x.values[...] = row[here]
            if x.mixed.values is not None:
                x.mixed.values[...] = x.values
        # ranks along cp may share the values, and each writes a part
        self._store.wait_for_updates()


class OwnValues:
    """The values of a replica that makes steps alone, which the parameters have during a round.
    Between rounds they have values that are equal on all replicas, and the difference is kept as
    optimizer state: so code that changes or loads the parameters then changes the replica's own
    values too."""

    def __init__(self, replica: ReplicaValues, optimizer: Optimizer) -> None:
        self._replica, self._optimizer = replica, optimizer
        optimizer.add_state(DIFFERENCE)

    def resume(self) -> Array:
        """Sets this replica's own values; returns those that all share."""
        shown = self._replica.values()
        self._replica.assign(shown + self._optimizer.state[DIFFERENCE])
        return shown

    def show(self, values: Array) -> None:
        """Shows `values`, equal on all replicas, and keeps the difference from them."""
        self._optimizer.state[DIFFERENCE][...] = self._replica.values() - values
        self._replica.assign(values)


def average_buffers(comm: Comm, model: Module) -> None:
    """Replaces floating-point buffers by their means, added in the order of ranks; integer ones
    stay."""
    buffers = [t._array for t in model.buffers() if t.dtype.kind == "f"]
    of_ranks = gather_objects(comm, [*map(backend.to_host, buffers)]) if buffers else []
    for buffer, *values in zip(buffers, *of_ranks, strict=True):
        mean = np.mean(values, axis=0, dtype=float)
        buffer[...] = backend.of(buffer).asarray(mean, buffer.dtype)
