"""Builds the strategy of each rank from an arrangement. `run/` imports all strategies from here."""

from collections.abc import Callable
from typing import NamedTuple

from nnmpi.addons import Table
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.parallel import refusals
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS
from nnmpi.parallel.checks import CHECKS
from nnmpi.parallel.executor_strategy import StrategyParts, slowed, synchronous
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.pipeline import own_stages as own_stages
from nnmpi.parallel.replicas.replicas import check_micro_batches as check_micro_batches
from nnmpi.parallel.replicas.replicas import pipelined, replicas
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import Strategy, TrainSpec


class SingleRank(NamedTuple):
    """The functions by which each rank also trains a second model alone, to compare with.

    arrangement  (arrangement): that of the second model
    strategy     (strategy, that of the second model, spec): trains both models and compares them
    """

    arrangement: Callable[[Arrangement], Arrangement]
    strategy: Callable[[Strategy, Strategy, TrainSpec], Strategy]


SINGLE_RANKS: Table[SingleRank] = Table("single_ranks")
"""By an option: the functions by which the run is compared with one on a single rank."""


def held(layout: Layout, spec: TrainSpec) -> tuple[LocalStore, Optimizer]:
    """Returns store and optimizer of one rank, made without others, to predict memory."""
    kind = spec.arrangement.strategy
    if kind.held is not None:
        return kind.held(layout, spec)
    store: LocalStore = (kind.parts or PARTS[kind.name])(layout, spec).store
    optimizer = spec.optimizer(store.parameters)
    store.keep_state(optimizer)
    return store, optimizer


PARTS: dict[str, Callable[[Layout, TrainSpec], StrategyParts]]
PARTS = {"replicas": replicas, "pipeline": pipelined}
"""The functions that make the parts of a strategy of core, by the name of its kind."""


def _synchronous(layout: Layout, spec: TrainSpec) -> Strategy:
    """Returns the strategy for a run in which all ranks make each step together."""
    a, dp = spec.arrangement, layout.axis["dp"]
    parts: StrategyParts = (a.strategy.parts or PARTS[a.strategy.name])(layout, spec)
    sync, stats = slowed(a.config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    return synchronous(parts._replace(sync=sync, batch_stats=stats), layout, spec)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for options that cannot be combined, before anything is made."""
    refusals.check(config, ranks)
    for checks in CHECKS.given(config):
        checks.ranks(config, ranks)
    mesh_of(config, ranks)  # raises ValueError unless the axes fit the ranks


def check_batch(config: Config, samples: int) -> None:
    """Raises ValueError for options that do not fit a batch of `samples` samples."""
    for checks in CHECKS.given(config):
        checks.batch(config, samples)


def build(layout: Layout, spec: TrainSpec) -> Strategy:
    """Returns the strategy that the arrangement in `spec` asks for. Every rank calls it; an error
    on one rank is raised on all. For --verify it also trains a second copy of the model."""
    if of_library := LIBRARY_SUMS.row(spec.arrangement.algorithm):
        of_library.connect(layout, spec.task.on)
    strategy: Strategy = (spec.arrangement.strategy.make or _synchronous)(layout, spec)
    if spec.single_rank is None:
        return strategy
    # each rank also trains the whole model, as a single rank would
    single = build(Layout.of_one_rank(), spec.single_rank)
    (added,) = SINGLE_RANKS.given(spec.arrangement.config)
    return added.strategy(strategy, single, spec)
