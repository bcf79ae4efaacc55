"""Data parallelism: every rank computes its share of a batch, and all sum their gradients."""

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from nnmpi.backend import Backend
from nnmpi.blas import cores, threads
from nnmpi.comm import Comm, NoRoomError
from nnmpi.config import Config
from nnmpi.data import Loader
from nnmpi.mesh import Mesh
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import ALONE
from nnmpi.nn.store import spans
from nnmpi.optim import Optimizer
from nnmpi.parallel.checks.slow_ranks import Delay
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.data.batch_split import Shares
from nnmpi.parallel.data.batch_stats import Together
from nnmpi.parallel.data.buckets import LOSS, STOP, Buckets, bounds, head_length
from nnmpi.parallel.executor import Facts, Stepped, Worker
from nnmpi.parallel.stores.node import Bounds, Single, place
from nnmpi.parallel.strategy import Job
from nnmpi.parallel.update import Mover

MB = 1e6


class DataParallel(Worker):
    """A synchronous step on every rank, and what goes with it."""

    def __init__(self, config: Config, comm: Comm, mesh: Mesh, job: Job) -> None:
        parameters = job.parameters
        r, p = mesh.place(comm.rank)["dp"], mesh.axes["dp"]
        self.progress = _progress(config, comm)
        self.how = _allreduce(config, comm)
        try:
            store, edges = _placed(config, comm, self.how, job.task.on, parameters)
        except NoRoomError as error:
            if config.allreduce != "auto":
                raise ValueError(f"allreduce {self.how}: {error}") from None
            self.how = "auto"
            store, edges = _placed(config, comm, self.how, job.task.on, parameters)
        self.optimizer = job.optimizer(parameters)
        exchange = AllReduce(
            store, Buckets(store, edges, config.overlap), self.optimizer, config.clip_norm
        )
        self._peers = part(comm, mesh, "dp")
        across = Together(self._peers) if p > 1 else ALONE
        delay = Delay.of(config.slow_rank, config.jitter, config.seed, comm.rank, comm.size)
        super().__init__(
            job.task._replace(across=across),
            exchange,
            Shares(config.micro_batches, p, r),
            job.wishes,
            delay,
        )
        self._comm, self.mesh, self._whole = comm, mesh, Shares(1, p, r)
        self._micro_batches = config.micro_batches

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        check_micro_batches(self._task.model, loader, self._wishes.steps, self._micro_batches)
        with self._comm.background() if self.progress == "thread" else nullcontext():
            yield from super().steps(loader, epoch)

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return self._whole(rows)

    def total(self, sums: np.ndarray) -> None:
        self._comm.all_reduce(sums, "doubling")

    def describe(self) -> dict[str, Any]:
        ranks = self.mesh.axes["dp"]
        return {"allreduce": self.how, "progress": self.progress} if ranks > 1 else {}

    def outcome(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        super().close()
        self._peers.free()


class AllReduce:
    """Every rank sums gradients with all others, and moves the parameters that it owns."""

    def __init__(
        self, store: Single, buckets: Buckets, optimizer: Optimizer, clip_norm: float | None
    ) -> None:
        self._store, self._buckets = store, buckets
        self._mover = Mover(store, optimizer, clip_norm)

    def begin(self) -> None:
        """A new step: gradients are written from here on."""
        self._mover.begin()
        self._store.begin()
        self._buckets.begin()

    def reduce(self, loss: Any, stop: bool) -> None:
        """The last backward pass is next."""
        head = self._store.flat_grad
        head[LOSS], head[STOP] = loss, stop

    def ready(self, p: Parameter) -> None:
        """The gradient of p is final."""
        self._buckets.ready(p)

    def push(self) -> None:
        """Between two parts of the backward pass."""
        self._buckets.push()

    def update(self, lr: float) -> Facts:
        """Waits for the sums, and moves the parameters."""
        self._buckets.finish()
        self._store.summed()
        return self._mover.move(lr)

    def close(self) -> None:
        """Gives back what was shared."""
        self._store.close()


def part(comm: Comm, mesh: Mesh, axis: str) -> Comm:
    """A Comm of the ranks along one axis of the mesh, with messages of its own."""
    group = comm.split(mesh.group(comm.rank, axis)[0])
    assert group is not None
    return group


def _allreduce(config: Config, comm: Comm) -> str:
    """How gradients are summed.

    By a rule, so that the same layout gives the same bits: through shared memory on one node; in
    two levels where some nodes have several ranks; else what Comm finds to be the fastest.
    """
    if config.allreduce != "auto":
        return config.allreduce
    if _one_node(comm):
        return "shared"
    crowded = np.array([len(comm.node()) > 1], np.int64)
    comm.all_reduce(crowded, "doubling")
    return "hierarchical" if crowded[0] else "auto"


def _one_node(comm: Comm) -> bool:
    return len(comm.node()) == comm.size


def _placed(
    config: Config, comm: Comm, how: str, on: Backend, parameters: Sequence[Parameter]
) -> tuple[Single, Bounds]:
    """The parameters where they will live, and the edges of buckets."""
    head, mb = head_length(parameters), config.bucket_mb
    if mb is None:  # within a node a bucket of its own costs more than it hides
        mb = np.inf if how == "shared" and _one_node(comm) else 1.0
    edges = bounds(spans(parameters, head), mb * MB, parameters[0].data.itemsize)
    return place(parameters, on, head, comm, how, edges), edges


def _progress(config: Config, comm: Comm) -> str:
    """Who pushes messages during the backward pass.

    A thread takes the lock of the interpreter and a share of a core: where it has none to itself,
    steps took longer with it than with nothing overlapped. So it needs two cores besides those of
    BLAS, one for it and one for the system's part of sending.
    """
    ranks = len(comm.node())
    if config.progress == "thread" and not comm.any_thread:
        raise ValueError(
            "progress thread: MPI was not started with THREAD_MULTIPLE, so that no other thread "
            "may use it; use --progress poll"
        )
    if config.progress != "auto":
        return config.progress
    spare = cores(ranks) - threads()
    return "thread" if comm.any_thread and ranks < comm.size and spare >= 2 else "poll"
