"""Arrangements of digits on paper, as `simulate layout` makes them."""

from dataclasses import replace
from typing import Any

from helpers.training.pipelined import digits

from nnmpi import Config
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.swapping.residence import Disk, Residence, Residences
from nnmpi.parallel.swapping.strategy import kind
from nnmpi.run.planning.on_paper import on_paper
from nnmpi.run.setup import models, objectives
from nnmpi.run.setup.cutting import uncut
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


def on_one_rank(a: Arrangement, *choice: Residence) -> Arrangement:
    """The arrangement whose stages are all on each rank, as --memory has it."""
    every = units(a.graph)
    trained = [k for k, unit in enumerate(every) if unit.is_trained]
    ends = tuple(trained[1 : len(choice)])
    division = divide(a.graph, every, ends, [0] * len(every))
    whole = arrange(a.config, a.cluster, a.graph, a.sharding, division, a.measured)
    names = tuple(map(str, range(len(choice))))
    return replace(whole, strategy=kind(Residences(names, choice, (), 0.0, Disk(1.0, 1.0))))
