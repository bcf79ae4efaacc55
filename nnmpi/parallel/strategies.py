"""Builds what each rank runs from an arrangement: the one file that knows every strategy.

`run/` takes all of it from here.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from nnmpi.options.config import Config
from nnmpi.parallel import averaging, nccl, pipedream, refusals, server
from nnmpi.parallel.checks import reproducible
from nnmpi.parallel.checks.reference_update import ReferenceUpdate
from nnmpi.parallel.checks.reproducible import check_batch as check_batch
from nnmpi.parallel.checks.slow_ranks import delay_of, slowed
from nnmpi.parallel.checks.verify import VerifiedStrategy
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.pipeline import own_stages as own_stages
from nnmpi.parallel.replicas.replicas import check_micro_batches as check_micro_batches
from nnmpi.parallel.replicas.replicas import pipelined, replicas
from nnmpi.parallel.strategy import (
    RankStep,
    Strategy,
    StrategyParts,
    TrainSpec,
    rank_step,
    swapper_of,
    synchronous,
)

# ---- steps of one rank, built without asking other ranks

PARTS: dict[str, Callable[[Layout, TrainSpec], StrategyParts]] = {
    "reproducible": reproducible.reproducible,
    "pipeline": pipelined,
    "replicas": replicas,
}
"""The functions that make the parts of strategies whose ranks make every step together."""


def _rank_step(
    make: Callable[[Layout, TrainSpec], StrategyParts], layout: Layout, spec: TrainSpec
) -> RankStep:
    return rank_step(make(layout, spec), layout, spec)


RANK_STEPS: dict[str, Callable[[Layout, TrainSpec], RankStep]] = {
    "server": server.rank_step,
    "averaging": averaging.rank_step,
    "pipedream": pipedream.rank_step,
    **{name: partial(_rank_step, make) for name, make in PARTS.items()},
}
"""The functions that make the steps of one rank without asking other ranks."""


# ---- strategies of a run


def _synchronous(
    make: Callable[[Layout, TrainSpec], StrategyParts], layout: Layout, spec: TrainSpec
) -> Strategy:
    """Returns the strategy of ranks that make every step together, at the pace of the slowest
    one."""
    swapper = swapper_of(layout, spec)
    with swapper.allocating_model() if swapper else nullcontext():
        parts = make(layout, spec)
    config, dp = spec.arrangement.config, layout.axis["dp"]
    sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    return synchronous(parts._replace(sync=sync, batch_stats=stats), layout, spec, swapper)


STRATEGIES: dict[str, Callable[[Layout, TrainSpec], Strategy]] = {
    "server": server.make,
    "averaging": averaging.make,
    "pipedream": pipedream.pipedream,
    **{name: partial(_synchronous, make) for name, make in PARTS.items()},
}
"""The functions that build strategies, by the names of `StrategyKind`."""


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for options that cannot be combined, before anything is made."""
    refusals.check(config, ranks)
    reproducible.check(config, ranks)
    server.check(config, ranks)
    pipedream.check(config, ranks)
    if config.slow_rank or config.jitter:
        delay_of(config, 0, mesh_of(config, ranks).size)


def build(layout: Layout, spec: TrainSpec) -> Strategy:
    """Returns the strategy of the arrangement. Every rank calls it; an error on one rank is raised
    on all."""
    nccl.connect(layout, spec.task.on, spec.arrangement.algorithm)
    strategy = STRATEGIES[spec.arrangement.strategy.name](layout, spec)
    if spec.twin is None:
        return strategy
    # --verify: each rank also trains the whole model, as a single rank would
    single = build(Layout.of_one_rank(), spec.twin)
    update = ReferenceUpdate(spec, spec.parameters)
    return VerifiedStrategy(strategy, single, (spec, spec.twin), update)
