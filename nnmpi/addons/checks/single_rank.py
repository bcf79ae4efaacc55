"""Makes the arrangement on one rank with which --verify compares."""

from dataclasses import replace
from typing import Any

from nnmpi import nn
from nnmpi.nn.graph import Graph
from nnmpi.options.config import options
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.tensor.rules import OPS

MULTI_RANK_OPTIONS = ("layout", "pipeline", "reduce", "sync", "checkpoints")
"""The groups of options that a run on one rank cannot use."""


def single_rank(arrangement: Arrangement) -> Arrangement:
    """Returns the arrangement of the same model on one rank, where passes are run by autograd.

    Batches are one micro-batch, so that a mean that micro-batches make wrong is not wrong here too.
    Only a model that mixes samples, as BatchNorm does, is given the run's micro-batches."""
    kept = {"micro_batches"} if _mixes_samples(arrangement.graph) else set[str]()
    plain: Any = {o.name: o.default for o in options(MULTI_RANK_OPTIONS) if o.name not in kept}
    config = replace(arrangement.config, **(plain | {"verify": False}), compile=False)
    return arrange(config, Cluster.on_paper(1), arrangement.graph)


def _mixes_samples(graph: Graph) -> bool:
    """True unless all layers, and the ops between them, are known to treat each sample alone."""
    of_batches = nn.BatchNorm1d, nn.BatchNorm2d
    return any(
        node.op not in OPS
        if node.layer is None
        else issubclass(node.layer, of_batches) or not node.layer.__module__.startswith("nnmpi.")
        for node in graph.nodes
    )
