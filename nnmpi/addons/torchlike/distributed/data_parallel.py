"""DistributedDataParallel: a model whose gradients are averaged over ranks after a backward pass.

A backward pass visits the nodes of the graph in reverse order of their creation. Each output of the
model gets one more parent: a node that counts as created before all others, so it is visited last.
Then every gradient of the pass is final, even of parameters that were also used outside of the
model, and the sums begin:

    root ─► ... ─► output ─► ... nodes of the model ...
                        └──────────────────────────────► LastNode: sums of gradients
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from weakref import ref

import numpy as np

from nnmpi.addons.torchlike.distributed.group import Group, array_of, joined, rows_of
from nnmpi.addons.torchlike.distributed.rows import Rows
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.steps import scale_loop
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import Storage, TapeNode, recording, tick
from nnmpi.nn import Module, Parameter
from nnmpi.nn.store import FlatStore, flatten
from nnmpi.parallel.stores.local import fill_unused
from nnmpi.parallel.wire import wire_for

MEGABYTE = 1 << 20
FLAGS = "doubling"
"""The all-reduce of the few numbers that say which parameters were used."""


class DistributedDataParallel(Module):
    """A model of which each rank of a group has a replica, trained with the mean of all ranks'
    gradients.

    Parameters and buffers of the first rank replace those of the others. After a backward pass
    through an output, each `grad` is the mean over the ranks; this includes gradients accumulated
    under `no_sync` before. A gradient that only some ranks have counts as 0 on the others.
    All-reduces begin when the backward pass has ended; a Trainer begins them earlier.

    bucket_cap_mb      the most megabytes of gradients in one all-reduce
    broadcast_buffers  True: each forward pass in training first copies the buffers of the first
                       rank to all ranks, except right after a pass under `no_sync`: ranks may make
                       different numbers of such passes, and all have to take part in a copy

    Other arguments of PyTorch's class change nothing.
    """

    def __init__(
        self,
        module: Module,
        *args: Any,
        broadcast_buffers: bool = True,
        process_group: Group = None,
        bucket_cap_mb: float = 25,
        **options: Any,
    ) -> None:
        super().__init__()
        self._rows = rows_of(process_group)
        self._broadcast_buffers, self._is_synced = broadcast_buffers, True
        self._was_synced = True  # the forward pass before, after which buffers may differ
        trained = [p for p in module.parameters() if p._requires_grad]
        if not trained:
            raise ValueError(
                "DistributedDataParallel: no parameter of this model is trained: use it as it is"
            )
        self._means = GradientMeans(self._rows, trained, bucket_cap_mb * MEGABYTE)
        self.module = module
        self._broadcast([*module.parameters()])
        self._broadcast([*module.buffers()])
        joined(process_group).models.append(ref(self))

    def forward(self, *args: Any, **options: Any) -> Any:
        """Returns the model's output; backward averages gradients, except under `no_sync`."""
        if self._broadcast_buffers and self.training and self._was_synced:
            self._broadcast([*self.module.buffers()])
        y = self.module(*args, **options)
        self._was_synced = self._is_synced and bool(recording.get())
        if not self._was_synced:
            return y
        last = LastNode(self._means.average)
        return _each_tensor(lambda t: followed(t, last), y)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context to accumulate gradients: backward does not average for outputs of it."""
        was_synced, self._is_synced = self._is_synced, False
        try:
            yield
        finally:
            self._is_synced = was_synced

    def _broadcast(self, values: Sequence[Any]) -> None:
        """Replaces arrays or parameters by those of the first rank."""
        for array in (array_of(value, "broadcast") for value in values):
            wire_for(self._rows.comm, array).broadcast(array, 0)


class GradientMeans:
    """Averages gradients over the ranks of `rows`, by all-reduces of at most `bucket_bytes` bytes.
    The parameters are moved into flat buffers first."""

    def __init__(self, rows: Rows, parameters: Sequence[Parameter], bucket_bytes: float) -> None:
        self._rows, self._parameters, self._bucket_bytes = rows, parameters, bucket_bytes
        for _, of_type in groupby(sorted(parameters, key=_dtype), _dtype):
            flatten([*of_type])  # which draws values, by the paths that they have now

    def average(self) -> None:
        """Replaces each gradient by its mean over the ranks, with 0 for those that a rank lacks;
        one that no rank has stays None."""
        comm = self._rows.comm
        used = np.array([p.has_grad for p in self._parameters], np.float32)
        comm.all_reduce(used, FLAGS)
        fill_unused(self._parameters)
        rows = [*self._buckets()]
        works = [wire_for(comm, row).start(row, self._rows.algorithm) for row in rows]
        for row, work in zip(rows, works, strict=True):
            work.wait()
            scale_loop(row, 1 / comm.size)
        for p, count in zip(self._parameters, used.tolist(), strict=True):
            p.has_grad = count > 0

    def _buckets(self) -> Iterator[Array]:
        """Yields views of the gradients' memory of at most `bucket_bytes` bytes, those of the last
        layers first. The memory is looked up each time, since an optimizer may have moved the
        gradients."""
        for store, start, stop in _slices(self._parameters[::-1]):
            size = max(int(self._bucket_bytes // store.dtype.itemsize), 1)
            for end in range(stop, start, -size):
                yield store.flat_grad[max(end - size, start) : end]


def _slices(parameters: Sequence[Parameter]) -> list[tuple[FlatStore, int, int]]:
    """Returns (flat buffer, start, stop) of neighbouring parameters' gradients."""
    slices = list[tuple[FlatStore, int, int]]()
    for p in parameters:
        store = p.store
        assert isinstance(store, FlatStore)
        start, stop = store.spans[p.index]
        if slices and slices[-1][0] is store and slices[-1][1] == stop:
            stop = slices.pop()[2]
        slices.append((store, start, stop))
    return slices


def _dtype(p: Parameter) -> str:
    return str(p.dtype)


def _each_tensor(function: Callable[[Tensor], Tensor], y: Any) -> Any:
    """Applies a function to the tensors of an output: one, or nested ones."""
    if isinstance(y, Tensor):
        return function(y)
    if isinstance(y, dict):
        return type(y)({key: _each_tensor(function, value) for key, value in y.items()})
    if isinstance(y, list | tuple):
        values = [_each_tensor(function, value) for value in y]
        return type(y)(*values) if hasattr(y, "_fields") else type(y)(values)
    return y


# ---- the end of a backward pass


class LastNode(TapeNode):
    """A tape node that makes a backward pass call `act` at its end: without parents, and as if
    created before all other nodes, it is visited last. Of several, the one that was created last is
    first."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.parents, self.needs, self.vjps = (), (), ()
        self.tick, self.storage = -tick(), Storage()
        self.storage.written = self.tick
        self.dtype, self.shape = np.dtype(np.float32), ()

        def prepare(g: Array, needs: Sequence[bool]) -> Array:
            act()
            return g

        self.prepare = prepare


def followed(y: Tensor, last: LastNode) -> Tensor:
    """Returns y, with the node `last` visited at the end of a backward pass."""
    if y.node is None:
        return y
    output = Tensor(y._array)
    y.share(output)
    output.requires_grad = True
    output.node = TapeNode(output, (y.node, last), (True, True), (_same, _nothing))
    return output


def _same(g: Array, out: Array | None) -> Array:
    return g


def _nothing(g: Array, out: Array | None) -> Array:
    return np.zeros((), np.float32)
