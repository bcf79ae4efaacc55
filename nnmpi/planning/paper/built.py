"""Builds a rank on arrays without data, as a run builds it: its store, optimizer, gradient sums and
executor. The store and the optimizer say how much memory they hold."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from nnmpi.arrays import meta
from nnmpi.arrays.backend import META
from nnmpi.data.loader import StepBatch
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore
from nnmpi.optim import Optimizer, of_config
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import HeldVariable
from nnmpi.parallel.model.parts import ModelPart, boundaries_of
from nnmpi.parallel.step.control import StepControl
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategies import rank_step_of
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.planning.paper.comm import RankState, layout_on_paper, rank_state
from nnmpi.planning.paper.idle_stage import IdleLoss, stage_of

CONTROL = StepControl(
    lr_factor=lambda step: 1.0,
    request=lambda: 0.0,
    steps=lambda: 1 << 30,
    event=lambda event: None,
    reads=lambda step: False,
    version=lambda: 0,
    launched=lambda: None,
)


class PaperRank(NamedTuple):
    """A simulated rank, whose steps are executed as in training, but whose arrays have no data, and
    whose messages are only logged.

    state       the log of its exchanges, and the memory that its communicators would need
    store       the memory of its parameters
    optimizer   its optimizer
    run         a function of (batch, position of training, number of batches in the epoch) that
                executes a step
    """

    state: RankState
    store: LocalStore
    optimizer: Optimizer
    run: Callable[[StepBatch, StepState, int], object]


def built(a: Arrangement, rank: int) -> PaperRank:
    """Returns a simulated rank (see PaperRank) for number `rank` of an arrangement with any
    strategy: its store, optimizer and executor, made as in a run but with arrays without data."""
    state, held = rank_state(a, rank), a.model_on(rank)
    layout = layout_on_paper(a, state)
    parameters = {variable.variable: _parameter(a, variable) for variable in held.trained}
    part = _part(a, rank, parameters)
    scale = LossScale.of(a.config.dtype)
    task = Task(part.model, Objective(IdleLoss(), {}), META, scale and Scaler(scale))
    make_optimizer = partial(of_config, a.config)
    spec = TrainSpec(*(task, part, [*parameters.values()], a, make_optimizer, CONTROL, state.log))
    return PaperRank(state, *rank_step_of(layout, spec))


def _parameter(a: Arrangement, held: HeldVariable) -> Parameter:
    p = Parameter.lazy(held.shape, None)
    p.padded_size, p._name = held.padded_size, a.graph.variables[held.variable].path
    p.move(SingleStore(meta.xp.empty(held.shape, a.updated_dtype)), 0)
    return p


def _part(a: Arrangement, rank: int, parameters: Mapping[int, Parameter]) -> ModelPart:
    """Returns the ModelPart of a simulated rank: an IdleStage for each of its stages, the
    boundaries over which they would exchange activations, and the parameters that the rank shares
    with other ranks. `parameters` is a dict: number of a parameter in the graph -> the parameter.
    """
    graph, elsewhere = a.graph, Parameter.lazy((0,), None)
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))  # servers have the parameters of a worker
    stages = {s: stage_of(a, rank, s, parameters) for s in a.model_on(rank).stages}
    by_path = {graph.variables[v].path: p for v, p in parameters.items()}
    tied = [(by_path.get(path, elsewhere), ranks) for path, ranks in a.tied.items()]
    model = next(iter(stages.values()))
    return ModelPart(model, stages, tied=tied, boundaries=boundaries_of(a, at))
