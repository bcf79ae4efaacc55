"""Makes the arrangement on one rank with which --verify compares."""

from dataclasses import replace
from typing import Any

from nnmpi.options.config import options
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster

MULTI_RANK_OPTIONS = ("layout", "pipeline", "reduce", "sync", "checkpoints")
"""The groups of options that a run on one rank cannot use, micro-batches excepted."""


def single_rank(arrangement: Arrangement) -> Arrangement:
    """Returns the arrangement of the same model on one rank, where passes are run by autograd."""
    plain: Any = {
        o.name: o.default for o in options(MULTI_RANK_OPTIONS) if o.name != "micro_batches"
    }
    config = replace(arrangement.config, **(plain | {"verify": False}), compile=False)
    return arrange(config, Cluster.on_paper(1), arrangement.graph)
