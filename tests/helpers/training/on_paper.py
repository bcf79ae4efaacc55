"""Arrangements of digits on paper, as `simulate layout` makes them."""

from dataclasses import replace
from typing import Any

from helpers.training.pipelined import digits

from nnmpi import Config
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
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


def held(store: Any, optimizer: Any) -> dict[str, int]:
    """The bytes that a store and an optimizer hold, by kind."""
    masters = store.masters
    return {
        "parameters": store.parameter_bytes(),
        "gradients": store.gradient_bytes(),
        "slots": store.slot_bytes(),
        "optimizer": sum(array.nbytes for array in optimizer.state.values()),
        "masters": 0 if masters is None else masters.nbytes,
    }
