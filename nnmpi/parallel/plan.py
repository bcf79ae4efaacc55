"""From a config to what each rank runs: the one place that knows every strategy.

STRATEGIES  the first whose condition holds builds the run
PARTS       what synchronous strategies consist of
REFUSALS    what cannot be combined (refusals.py)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nnmpi.autograd.functional import tensor
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.mesh import Mesh
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel import refusals, server
from nnmpi.parallel.checks import reproducible
from nnmpi.parallel.checks.reference_update import ReferenceUpdate
from nnmpi.parallel.checks.slow_ranks import Delay, slowed
from nnmpi.parallel.checks.verify import Verified
from nnmpi.parallel.data.replicas import replicas
from nnmpi.parallel.layout import Layout, server_count
from nnmpi.parallel.step.executor import refuse
from nnmpi.parallel.strategy import Memory, Strategy, TrainSpec
from nnmpi.parallel.synchronous import Parts, Synchronous

PARTS: dict[str, Callable[[Config, Layout, TrainSpec], Parts]] = {
    "replicas": replicas,
    "reproducible": reproducible.reproducible,
}
"""Data parallelism with gradients summed in buckets, or along one tree over slices."""


class Choice(NamedTuple):
    """A strategy, and when it is taken."""

    when: Callable[[Config], bool]
    build: Callable[[Config, Layout, TrainSpec], Strategy]


def _synchronous(name: str) -> Callable[[Config, Layout, TrainSpec], Strategy]:
    def build(config: Config, layout: Layout, spec: TrainSpec) -> Strategy:
        parts = PARTS[name](config, layout, spec)
        dp = layout.axis["dp"]
        sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
        parts = parts._replace(sync=sync, batch_stats=stats)
        return Synchronous(parts, layout, spec, config.clip_norm)

    return build


def _verified(config: Config, layout: Layout, spec: TrainSpec) -> Strategy:
    """The strategy without --verify, and beside it the same on one rank."""
    assert spec.twin is not None
    plain = replace(config, verify=False)
    one = replace(plain, dp=None, slow_rank=None, jitter=None)
    both = _chosen(plain, layout, spec), _chosen(one, Layout.of_one_rank(), spec.twin)
    models = spec.task.model, spec.twin.task.model
    update = None if config.dtype == "float64" else ReferenceUpdate(spec)
    return Verified(*both, models, update, spec.on_event)


STRATEGIES = (
    Choice(lambda config: config.verify, _verified),
    Choice(lambda config: server_count(config) > 0, server.make),
    Choice(lambda config: config.reproducible, _synchronous("reproducible")),
    Choice(lambda config: True, _synchronous("replicas")),
)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for what cannot be, before anything is made."""
    refusals.check(config, ranks)
    if config.reproducible:
        reproducible.check(config, ranks)
    server.check(config, ranks)
    workers = ranks - server_count(config)
    Mesh.filled(workers, config.dp)
    Delay.of(config, 0, workers)


def build(config: Config, comm: Comm, spec: TrainSpec) -> Strategy:
    """The strategy that the config asks for. Every rank calls it; what fails, fails on all."""
    layout = Layout.of(config, comm)
    try:
        return _chosen(config, layout, spec)
    except ValueError:
        layout.free()
        raise


def _chosen(config: Config, layout: Layout, spec: TrainSpec) -> Strategy:
    choice = next(choice for choice in STRATEGIES if choice.when(config))
    return choice.build(config, layout, spec)


def memory(strategy: Strategy) -> Memory:
    """What a rank of this strategy takes for gradients and optimizer state; every rank calls it."""
    optimizers = strategy.optimizers if isinstance(strategy, Verified) else (strategy.optimizer,)
    stores = {p.store for optimizer in optimizers for p in optimizer.parameters}
    gradients = sum(s.gradient_bytes() for s in stores if isinstance(s, FlatStore))
    return Memory(gradients, sum(a.nbytes for optimizer in optimizers for a in optimizer.state))


def pieces(config: Config, ranks: int) -> int:
    """How many parts a batch is cut into, of which a rank computes one at a time."""
    if config.reproducible:
        return config.slices
    return config.micro_batches * (1 if config.verify else ranks - server_count(config))


def in_step(config: Config) -> bool:
    """Whether parameters change only within steps of this rank: a server changes them any time."""
    return not server_count(config)


def order_of_use(model: Module, sample: np.ndarray, on: Backend) -> list[Parameter]:
    """The parameters that are trained, in the order in which the model uses them.

    Gradients become final in the reverse order. Parameters that are not used come first.
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
    for leaf in used.difference(trained):
        refuse(leaf)
    return [p for p in trained if p not in used] + found[::-1]
