"""From a config to what each rank runs: the one place that knows every strategy."""

from dataclasses import replace

import numpy as np

from nnmpi.autograd.functional import tensor
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.comm.transport.threads import alone
from nnmpi.config import Config
from nnmpi.mesh import Mesh
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.checks import reproducible
from nnmpi.parallel.checks.reference_update import Update
from nnmpi.parallel.checks.slow_ranks import Delay
from nnmpi.parallel.checks.verify import Verified
from nnmpi.parallel.data.batch_split import Shares
from nnmpi.parallel.data.gradient_sync import DataParallel, part
from nnmpi.parallel.executor import refuse
from nnmpi.parallel.server import topology
from nnmpi.parallel.server.client import Remote
from nnmpi.parallel.server.server import Server
from nnmpi.parallel.strategy import Job, Memory, Strategy


def check(config: Config, ranks: int) -> None:
    """Refuses what cannot be, before anything is made."""
    if config.reproducible:
        reproducible.check(config, ranks)
    elif config.shards != Config().shards:
        raise ValueError(
            f"shards {config.shards} without reproducible: a batch is cut into shards for that "
            "alone; add --reproducible, or leave shards out"
        )
    topology.check(config, ranks)
    workers = topology.Roles.of(config, ranks).workers
    Mesh.filled(workers, config.dp)
    Delay.of(config.slow_rank, config.jitter, config.seed, 0, workers)
    if ranks > 1 and config.device != "cpu":
        raise ValueError(
            f"device {config.device} with {ranks} ranks: gradients are summed on the host only; "
            "use one rank or --device cpu"
        )


def build(config: Config, comm: Comm, job: Job) -> Strategy:
    """The strategy that the config asks for. Every rank calls it."""
    if config.verify:
        return _verified(config, comm, job)
    if topology.Roles.of(config, comm.size).servers:
        return _served(config, comm, job)
    mesh = Mesh.filled(comm.size, config.dp)
    if config.reproducible:
        return reproducible.Sharded(config, part(comm, mesh, "dp"), mesh, job)
    return DataParallel(config, comm, mesh, job)


def _verified(config: Config, comm: Comm, job: Job) -> Strategy:
    """The layout, and beside it the same on one rank."""
    twin = job.twin
    assert twin is not None
    layout = build(replace(config, verify=False), comm, job)
    one = replace(config, verify=False, dp=None, slow_rank=None, jitter=None)
    models = job.task.model, twin.task.model
    update = None if config.dtype == "float64" else Update(job)
    return Verified(layout, build(one, alone(), twin), models, update, comm, job.tell)


def _served(config: Config, comm: Comm, job: Job) -> Strategy:
    """A worker or a server, by the rank."""
    seat = topology.Seat.of(config, comm, job)
    workers, r = seat.roles.workers, comm.rank
    if r >= workers:
        return Server(seat)
    delay = Delay.of(config.slow_rank, config.jitter, config.seed, r, workers)
    return Remote(seat, Shares(config.micro_batches, workers, r), Shares(1, workers, r), delay)


def memory(strategy: Strategy) -> Memory:
    """What a rank of this strategy takes for gradients and running sums; every rank calls it."""
    all_ = strategy.optimizers if isinstance(strategy, Verified) else (strategy.optimizer,)
    stores = {p.store for optimizer in all_ for p in optimizer.parameters}
    gradients = sum(s.gradient_bytes() for s in stores if isinstance(s, FlatStore))
    return Memory(gradients, sum(a.nbytes for optimizer in all_ for a in optimizer.state))


def pieces(config: Config, ranks: int) -> int:
    """How many parts a batch is cut into, of which a rank computes one at a time."""
    if config.reproducible:
        return config.shards
    return config.micro_batches * (1 if config.verify else topology.Roles.of(config, ranks).workers)


def in_step(config: Config, ranks: int) -> bool:
    """Whether parameters move within steps of this rank only: a server moves them at any time."""
    return not topology.Roles.of(config, ranks).servers


def order_of_use(model: Module, sample: np.ndarray, on: Backend) -> list[Parameter]:
    """The parameters that are trained, in the order in which the model uses them.

    That is the order from which gradients become final, backwards; those that nothing uses come
    first.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    found: list[Parameter] = []
    mode = model.training
    model.eval()
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            model(tensor(np.zeros_like(sample), on=on)).sum().backward(on_leaf=found.append)
    finally:
        model.train(mode)
    for p in trained:
        p.grad = None
    used = set(found)
    for strange in used.difference(trained):
        refuse(strange)
    return [p for p in trained if p not in used] + found[::-1]
