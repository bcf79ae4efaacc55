"""From a config to what each rank runs: the one place that knows every strategy.

STRATEGIES  the first whose condition holds builds the run
PARTS       what synchronous strategies consist of
REFUSALS    what cannot be combined: the rows of all features
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from nnmpi.config import Config
from nnmpi.nn.store import FlatStore
from nnmpi.parallel import refusals, server
from nnmpi.parallel.checks import refusals as of_checks
from nnmpi.parallel.checks import reproducible
from nnmpi.parallel.checks.reference_update import ReferenceUpdate
from nnmpi.parallel.checks.slow_ranks import delay_of, slowed
from nnmpi.parallel.checks.verify import Verified
from nnmpi.parallel.data import refusals as of_data
from nnmpi.parallel.data.replicas import replicas
from nnmpi.parallel.layout import Layout, mesh_of, server_count
from nnmpi.parallel.pipeline import pipedream
from nnmpi.parallel.pipeline import refusals as of_pipelines
from nnmpi.parallel.pipeline.pipedream import PipeDream, is_pipedream
from nnmpi.parallel.pipeline.synchronous import is_pipeline, pipeline
from nnmpi.parallel.server import refusals as of_servers
from nnmpi.parallel.strategy import Memory, Strategy, TrainSpec
from nnmpi.parallel.synchronous import Parts, Synchronous
from nnmpi.parallel.tensor import refusals as of_tensors
from nnmpi.parallel.zero import refusals as of_zero

PARTS: dict[str, Callable[[Config, Layout, TrainSpec], Parts]] = {
    "replicas": replicas,
    "reproducible": reproducible.reproducible,
    "pipeline": pipeline,
}
"""Data parallelism with gradients summed in buckets, or along one tree over slices; pipelines."""


ROOMS = (of_checks, of_pipelines, of_servers, of_tensors, of_zero, of_data)

REFUSALS = tuple(row for room in ROOMS for row in room.REFUSALS)
NEEDS = tuple(row for room in (of_checks, of_pipelines, of_servers, of_data) for row in room.NEEDS)


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
    plain, one = replace(config, verify=False), spec.twin.arrangement.config
    both = _chosen(plain, layout, spec), _chosen(one, Layout.of_one_rank(), spec.twin)
    models = spec.task.model, spec.twin.task.model
    parts = both[0].entries.parts
    held = [p for p in spec.parameters if parts.has(p)]
    update = None if config.dtype == "float64" else ReferenceUpdate(spec, held)
    return Verified(*both, models, update, spec.on_event)


STRATEGIES = (
    Choice(lambda config: config.verify, _verified),
    Choice(lambda config: server_count(config) > 0, server.make),
    Choice(lambda config: config.reproducible, _synchronous("reproducible")),
    Choice(is_pipedream, PipeDream),
    Choice(is_pipeline, _synchronous("pipeline")),
    Choice(lambda config: True, _synchronous("replicas")),
)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for what cannot be, before anything is made."""
    refusals.check(config, ranks, REFUSALS, NEEDS)
    if config.reproducible:
        reproducible.check(config, ranks)
    if is_pipedream(config):
        pipedream.check(config, ranks)
    server.check(config, ranks)
    delay_of(config, 0, mesh_of(config, ranks).size)


def check_batch(config: Config, samples: int) -> None:
    """Raises ValueError for batches that cannot be cut as the config says."""
    if config.reproducible:
        reproducible.check_batch(config, samples)


def build(config: Config, layout: Layout, spec: TrainSpec) -> Strategy:
    """The strategy that the config asks for. Every rank calls it; what fails, fails on all."""
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
