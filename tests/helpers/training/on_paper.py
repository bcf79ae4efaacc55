"""Arrangements of digits on paper, as `simulate layout` makes them."""

from dataclasses import replace
from typing import Any

import numpy as np
from helpers.training.pipelined import digits

from nnmpi import Config
from nnmpi.data.loader import Batch, StepBatch
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step.executor import StepState
from nnmpi.planning.paper.built import PaperRank, built
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


def after_steps(a: Arrangement, rank: int, steps: int) -> PaperRank:
    """A rank on paper that has made so many steps."""
    one, at = built(a, rank), min(rank, a.mesh.size - 1)
    sizes = micro_batches(a, at, a.config.batch_size)
    micro = [Batch(np.empty((n, 0)), np.zeros(n), np.arange(n)) for n in sizes]
    load = StepBatch(np.arange(sum(sizes)), micro, float(a.config.batch_size))
    for step in range(steps):
        one.run(load, StepState(step, 0, step), 1 << 30)
    return one
