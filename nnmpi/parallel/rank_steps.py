"""RANK_STEPS: what a rank of each strategy makes steps with, built without asking other ranks."""

from collections.abc import Callable
from functools import partial

from nnmpi.parallel import pipedream, server
from nnmpi.parallel.checks import reproducible
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.replicas.replicas import pipelined, replicas
from nnmpi.parallel.strategy import RankStep, StrategyParts, TrainSpec, rank_step

PARTS: dict[str, Callable[[Layout, TrainSpec], StrategyParts]] = {
    "reproducible": reproducible.reproducible,
    "pipeline": pipelined,
    "replicas": replicas,
}
"""What makes the parts of strategies whose ranks make every step together."""


def _rank_step(
    make: Callable[[Layout, TrainSpec], StrategyParts], layout: Layout, spec: TrainSpec
) -> RankStep:
    return rank_step(make(layout, spec), layout, spec)


RANK_STEPS: dict[str, Callable[[Layout, TrainSpec], RankStep]] = {
    "server": server.rank_step,
    "pipedream": pipedream.rank_step,
    **{name: partial(_rank_step, make) for name, make in PARTS.items()},
}
"""What a rank makes steps with; it asks no other rank."""
