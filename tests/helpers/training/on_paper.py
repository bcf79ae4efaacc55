"""Arrangements of digits on paper, as `simulate layout` makes them."""

from dataclasses import replace
from typing import Any

from helpers.training.pipelined import digits

from nnmpi import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup import models, objectives
from nnmpi.run.setup.cutting import on_paper, uncut
from nnmpi.run.setup.setup import build_model

PLAIN = {"dtype": "float64", "epochs": 1, "batch_size": 24}


def arranged(
    cluster: Cluster, build: Any = None, given: Any = digits, **options: Any
) -> Arrangement:
    """The arrangement of a model, by name or built, on a cluster on paper."""
    config = Config(**(PLAIN | options))
    if build is not None:
        config = replace(config, model="built")
    config, build = models.resolved(config, build)
    model = build_model(config, build, given())
    return on_paper(uncut(config, model, given(), objectives.criterion(None)), cluster)
