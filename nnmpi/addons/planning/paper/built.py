"""Builds a rank's store and optimizer without data; they say what memory they take."""

from functools import partial
from typing import Any, NamedTuple

from nnmpi.addons.planning.paper.comm import SumsMemory, layout_on_paper
from nnmpi.arrays import meta
from nnmpi.arrays.backend import META
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore
from nnmpi.optim import Optimizer
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.optim.of_options import of_config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import HeldVariable
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategies import held
from nnmpi.parallel.strategy import TrainSpec


class PaperRank(NamedTuple):
    """The objects that a rank holds between steps, on arrays without data; `memory` is that of its
    node which its communicators would allocate."""

    memory: SumsMemory
    store: LocalStore
    optimizer: Optimizer


def built(a: Arrangement, rank: int) -> PaperRank:
    """Returns what rank number `rank` of an arrangement with any strategy holds between steps."""
    memory = SumsMemory(a, rank)
    by_path = {
        a.graph.variables[held.variable].path: _parameter(a, held)
        for held in a.model_on(rank).trained
    }
    elsewhere = Parameter.lazy((0,), None)
    tied = [(by_path.get(path, elsewhere), ranks) for path, ranks in a.tied.items()]
    model, scaler = Module(), Scaler(LossScale.of(a.config.dtype)) if a.is_mixed else None
    model._parameters.update(by_path)  # not as attributes, which would change their paths
    vars(model).update(by_path)
    part = ModelPart(model, {0: model}, tied=tied)
    nothing: Any = None  # a rank without steps has no loss, and reads no settings
    task = Task(model, nothing, META, scaler)
    parameters = [*by_path.values()]
    spec = TrainSpec(task, part, parameters, a, partial(of_config, a.config), nothing)
    return PaperRank(memory, *held(layout_on_paper(a, rank, memory), spec))


def _parameter(a: Arrangement, held: HeldVariable) -> Parameter:
    p = Parameter.lazy(held.shape, None)
    p.padded_size, p._name = held.padded_size, a.graph.variables[held.variable].path
    p.move(SingleStore(meta.xp.empty(held.shape, a.updated_dtype)), 0)
    return p
