"""Who computes and who serves under a parameter server, and what both have in common.

5 ranks, 2 servers      rank 0, 1, 2  workers: they push gradients and pull parameters
                        rank 3        the first server: it also says who goes on, and when to end
                        rank 4        another one
flat      [ a a a a a a | b b b b b b ]     each server moves its slice of all parameters
            rank 3        rank 4
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.backend import CPU, Array
from nnmpi.collectives.step import cut
from nnmpi.comm import Comm
from nnmpi.comm.transport.threads import alone
from nnmpi.config import Config
from nnmpi.data import Loader
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.parallel.data.batch_size_check import check_micro_batches, check_shares
from nnmpi.parallel.data.batch_split import Shares
from nnmpi.parallel.executor import Stepped, Task, Wishes
from nnmpi.parallel.strategy import Job


class Roles(NamedTuple):
    """The first ranks are workers, the last ones servers; none of these where ranks all-reduce."""

    workers: int
    servers: int

    @classmethod
    def of(cls, config: Config, ranks: int) -> Self:
        """What the config asks for: bsp needs no server, ssp and asp need one."""
        servers = config.servers or int(config.sync != "bsp")
        return cls(ranks - servers, servers)

    @property
    def first(self) -> int:
        """The rank of the first server."""
        return self.workers

    def slice(self, n: int, k: int) -> slice:
        """Which of n numbers belong to server k."""
        return slice(cut(n, self.servers, k), cut(n, self.servers, k + 1))


class Seat(NamedTuple):
    """What a rank has to know, worker or server; both make the same things in the same order."""

    comm: Comm
    roles: Roles
    task: Task
    optimizer: Callable[[Sequence[Parameter]], Optimizer]
    wishes: Wishes
    bound: float  # how many steps a worker may be ahead of the slowest: none, so many, or any
    clip_norm: float | None
    micro_batches: int

    @classmethod
    def of(cls, config: Config, comm: Comm, job: Job) -> Self:
        """What the config asks of a rank of this Comm."""
        roles = Roles.of(config, comm.size)
        bound = {"bsp": 0, "ssp": config.staleness, "asp": math.inf}[config.sync]
        return cls(
            comm,
            roles,
            job.task,
            job.optimizer,
            job.wishes,
            bound,
            config.clip_norm,
            config.micro_batches,
        )

    @property
    def synchronous(self) -> bool:
        """Whether all gradients of a step are summed first."""
        return self.bound == 0

    def peers(self) -> Comm:
        """A Comm of those with the same role: every rank asks for it together, and frees it.

        Where they have nothing to sum, each rank has one of its own.
        """
        several = self.roles.workers > 1, self.roles.servers > 1
        if not self.synchronous:  # then servers sum nothing, and workers their buffers only
            several = several[0] and bool(_moving_buffers(self.task.model)), False
        if not any(several):
            return alone()
        role = int(self.comm.rank >= self.roles.first)
        part = self.comm.split(role if several[role] else None)
        return alone() if part is None else part

    def check_shares(self, loader: Loader) -> None:
        """Refuses parts of a batch that are too small for the model, on all ranks alike."""
        workers, parts, steps = self.roles.workers, self.micro_batches, self.wishes.steps
        if self.synchronous:
            check_micro_batches(self.task.model, loader, steps, parts)
            return
        check_shares(  # workers see nothing but their own
            self.task.model,
            loader,
            min(workers * steps, steps + self.bound + 1),  # that the fastest may come to
            [Shares(parts, workers, r) for r in range(workers)],
            f"{_counted(workers, 'worker')} and {_counted(parts, 'micro-batch', 'es')}",
            "fewer workers, another --batch-size or --sync bsp",
        )

    def describe(self) -> dict[str, Any]:
        """What is told before the first step."""
        ahead = None if self.bound == math.inf else int(self.bound)
        return {"servers": self.roles.servers, "steps_ahead": ahead}


def check(config: Config, ranks: int) -> None:
    """Refuses what cannot be."""
    workers, servers = Roles.of(config, ranks)
    if config.staleness and config.sync != "ssp":
        raise ValueError(
            f"staleness {config.staleness} with sync {config.sync}: "
            "it is for --sync ssp; add that, or leave it out"
        )
    if workers < 1:
        raise ValueError(
            f"sync {config.sync} with {_counted(servers, 'server')} leaves none of "
            f"{_counted(ranks, 'rank')} to train: start mpirun -n {servers + 1} or more"
        )
    if servers and config.dp not in (None, workers):
        raise ValueError(
            f"dp {config.dp} does not fit {ranks} ranks of which {servers} serve: "
            f"start it with mpirun -n {config.dp + servers}, or leave dp out"
        )
    if servers:
        _refuse_sums(config, servers)


def _refuse_sums(config: Config, servers: int) -> None:
    """What is asked of gradients that ranks sum themselves."""
    plain = Config()
    for name in ("allreduce", "bucket_mb", "overlap", "progress", "verify", "reproducible"):
        if getattr(config, name) != getattr(plain, name):
            raise ValueError(
                f"{name} with {_counted(servers, 'server')} (sync {config.sync}): {name} is for "
                f"ranks that sum their gradients; leave {name} out, or use --sync bsp --servers 0"
            )


def _counted(n: int, what: str, ending: str = "s") -> str:
    return f"{n} {what}{ending * (n != 1)}"


class SliceStore(FlatStore):
    """Whole buffers, of which this rank's optimizer moves a slice: that of a server, or nothing."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        own: slice,
        memory: tuple[Array, Array] | None = None,
    ) -> None:
        self.own = own
        super().__init__(parameters, parameters[0].data.dtype, CPU, 0, memory)

    def owned(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        lo, hi = max(start, self.own.start), min(end, self.own.stop)
        if lo < hi:
            yield lo, hi

    def gradient_bytes(self) -> int:
        """A worker's whole gradient, or the sum of a server's slice."""
        own = self.own.stop - self.own.start
        return own * self.flat.itemsize if own else super().gradient_bytes()

    def close(self, comm: Comm) -> None:
        """Every rank gets all parameters, in memory of its own."""
        comm.broadcast(self.flat)
        for p in self.parameters:
            p.grad = None
        FlatStore(self.parameters, self.flat.dtype, CPU)


def average_buffers(comm: Comm, model: Module) -> None:
    """They become their mean over the ranks, added in the order of ranks; counts are left alone."""
    buffers = _moving_buffers(model)
    if not buffers:
        return
    own = np.concatenate([b.ravel() for b in buffers])
    every = np.empty((comm.size, own.size))
    every[comm.rank] = own
    comm.all_gather(every, "halving")
    ends = np.cumsum([b.size for b in buffers])[:-1]
    for buffer, mean in zip(buffers, np.split(every.mean(0), ends), strict=True):
        buffer[...] = mean.reshape(buffer.shape)


def _moving_buffers(model: Module) -> list[Array]:
    return [b for _, b in model.named_buffers() if b.dtype.kind == "f"]


class Totals(NamedTuple):
    """What all workers together have done in an epoch."""

    pushes: int = 0
    samples: int = 0
    loss: float = 0.0
    skipped: int = 0  # pushes or, where these are summed, steps that were not finite


def told(seen: Totals, now: Totals, step: int, stop: bool = False) -> Iterator[Stepped]:
    """What is new since somebody has last looked, in one step; more of them if some were skipped.

    So whoever adds up what it is told has the sums over all ranks.
    """
    skipped = now.skipped - seen.skipped
    for _ in range(skipped - 1):
        yield Stepped(step - 1, 0, 0.0, False, False)  # the last one ends the epoch
    yield Stepped(step, now.samples - seen.samples, now.loss - seen.loss, stop, skipped == 0)
