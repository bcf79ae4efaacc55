"""Builds a simulated rank, whose arrays have no data: its store, optimizer, gradient sums and
executor, as a run builds them. Computes from it the memory that the rank holds between steps, and
the messages of a step."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import META
from nnmpi.arrays.meta.log import logged_calls, touched_bytes
from nnmpi.arrays.native.table import Kernel
from nnmpi.data.loader import Batch, StepBatch
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore
from nnmpi.optim import Optimizer, of_config
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import TRAFFIC_AXES, AxisTraffic, Exchange, Traffic, sent
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.arrangement.rank_model import HeldVariable, Memory
from nnmpi.parallel.arrangement.state_on_paper import untrained_on_paper
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.model.parts import ModelPart, boundaries_of
from nnmpi.parallel.step.control import StepControl
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.strategies import rank_step_of
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.planning.paper.comm import RankState, layout_on_paper, rank_state
from nnmpi.planning.paper.log import Entry
from nnmpi.planning.paper.recording import passes
from nnmpi.planning.paper.stage import PaperStage
from nnmpi.planning.paper.twins import moved, twin
from nnmpi.schedules.op import Kind

CONTROL = StepControl(
    lr_factor=lambda step: 1.0,
    request=lambda: 0.0,
    steps=lambda: 1 << 30,
    event=lambda event: None,
    reads=lambda step: False,
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


class PaperLoss:
    """Stands for the loss in a simulated step; returns the scores, since the recorded passes of the
    last stage contain the loss already."""

    def __call__(self, scores: Any, labels: Any) -> Any:
        return scores

    def divisor(self, target: Any) -> float:
        return 1.0


def built(a: Arrangement, rank: int) -> PaperRank:
    """Returns a simulated rank (see PaperRank) for number `rank` of an arrangement with any
    strategy: its store, optimizer and executor, made as in a run but with arrays without data."""
    state, held = rank_state(a, rank), a.model_on(rank)
    layout = layout_on_paper(a, state)
    parameters = {variable.variable: _parameter(a, variable) for variable in held.trained}
    part = _part(a, rank, parameters, layout.axis)
    scale = LossScale.of(a.config.dtype)
    task = Task(part.model, Objective(PaperLoss(), {}), META, scale and Scaler(scale))
    make_optimizer = partial(of_config, a.config)
    spec = TrainSpec(*(task, part, [*parameters.values()], a, make_optimizer, CONTROL, state.log))
    return PaperRank(state, *rank_step_of(layout, spec))


def _parameter(a: Arrangement, held: HeldVariable) -> Parameter:
    p = Parameter.lazy(held.shape, None)
    p.padded_size, p._name = held.padded_size, a.graph.variables[held.variable].path
    p.move(SingleStore(meta.xp.empty(held.shape, a.updated_dtype)), 0)
    return p


def _part(
    a: Arrangement, rank: int, parameters: Mapping[int, Parameter], comms: Mapping[str, Any]
) -> ModelPart:
    """Returns the ModelPart of a simulated rank: a PaperStage for each of its stages, the
    boundaries over which they would exchange activations, and the parameters that the rank shares
    with other ranks.

    parameters   a dict: number of a parameter in the graph -> the parameter
    comms        a dict: axis of the mesh -> the simulated Comm along it
    """
    graph, elsewhere = a.graph, Parameter.lazy((0,), None)
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))  # servers have the parameters of a worker
    stages = dict[int, Any]()
    for s in a.model_on(rank).stages:
        of_stage = {v: parameters[v] for v in a.division.stages[s].variables if v in parameters}
        recorded = cache(partial(passes, a, rank, s))
        stages[s] = PaperStage(recorded, of_stage, comms)
    by_path = {graph.variables[v].path: p for v, p in parameters.items()}
    tied = [(by_path.get(path, elsewhere), ranks) for path, ranks in a.tied.items()]
    model = next(iter(stages.values()))
    return ModelPart(model, stages, tied=tied, boundaries=boundaries_of(a, at))


class PaperStep(NamedTuple):
    """The result of a simulated step of one rank.

    exchanges     a dict: axis of the mesh -> the rank's collectives and messages along it
    held          the memory of its trained parameters, gradients and optimizer state
    bytes_copied  bytes that it reads and writes to pack and unpack messages, in a step on average;
                  passes and the update are not counted
    by_op         a dict: (kind of operation, bucket) -> the exchanges that such an operation
                  starts, the same ones each time
    """

    exchanges: Mapping[str, list[Exchange]]
    held: Memory
    bytes_copied: float = 0.0
    by_op: Mapping[tuple[Kind, int], Sequence[Exchange]] = {}


def exchanges(a: Arrangement, rank: int, batch: int) -> Mapping[str, list[Exchange]]:
    """Returns a dict: axis of the mesh -> the exchanges (collectives and messages) along it that a
    rank makes in a step over `batch` samples."""
    return step(a, rank, batch).exchanges


@cached
def step(a: Arrangement, rank: int, batch: int) -> PaperStep:
    """Returns the result of a simulated step of a rank over `batch` samples. If another rank with
    an equal step (a twin) was simulated before, its result is converted instead."""
    if (source := twin(a, rank, batch)) != rank:
        of_twin = step(a, source, batch)
        by_axis = {
            axis: [moved(a, exchange, source, rank) for exchange in exchanges_of_twin]
            for axis, exchanges_of_twin in of_twin.exchanges.items()
        }
        by_op = {
            at: [moved(a, exchange, source, rank) for exchange in of_op]
            for at, of_op in of_twin.by_op.items()
        }
        return of_twin._replace(exchanges=by_axis, by_op=by_op)
    return executed(a, rank, batch)


def executed(a: Arrangement, rank: int, batch: int) -> PaperStep:
    """Simulates a step of a rank over `batch` samples by its executor, on arrays without data;
    returns the exchanges of the step, and the memory that its parameters take."""
    paper_rank = built(a, rank)
    if rank >= a.mesh.size:  # servers compute no stage
        return PaperStep({}, _held(a, paper_rank))
    sizes = micro_batches(a, rank, batch)
    micro = [Batch(np.empty((n, 0)), np.zeros(n), np.arange(n)) for n in sizes]
    load = StepBatch(np.broadcast_to(0, batch), micro, float(batch))
    # only the last step is logged. Before it ZeRO needs one step, since no parameter is gathered
    # yet, and PipeDream one per stage, until its pipeline is full and all weight versions exist
    first = int(a.store.zero > 0) if a.steps_together else len(a.stages)
    averages = a.strategy.averages
    batches = 1 if averages else 1 << 30  # a round ends with an epoch
    log, numbers = paper_rank.state.log, count()

    def entries(of: StepBatch) -> Counter[Entry]:
        log.clear()
        number = next(numbers)
        paper_rank.run(of, StepState(number, 0, number), batches)
        paper_rank.store.wait()
        return Counter(log.entries)

    for _ in range(first):
        entries(load._replace(micro=micro[:1]) if a.steps_together else load)
    few, period = few_micro_batches(a, sizes)
    if few + period < len(micro):
        fewer, more = (entries(load._replace(micro=micro[:n])) for n in (few, few + period))
        log.entries = repeated(fewer, more, (len(micro) - few) // period)
    else:
        entries(load)
    exchanges, touched = log.exchanges(), 0.0
    if averages:
        others = a.mesh.group(rank, "dp")
        exchanges["dp"] = [averages.priced(a, each, others) for each in exchanges.get("dp", ())]
        touched = _touched_by_replica(a, partial(paper_rank.run, load))
    elif asked_kind(a.config).packs:
        touched = _touched(partial(paper_rank.run, load), StepState(1, 0, 1), batches)
    return PaperStep(exchanges, _held(a, paper_rank), touched, dict(log.by_op))


def few_micro_batches(a: Arrangement, sizes: Sequence[int]) -> tuple[int, int]:
    """Returns two numbers of micro-batches, (few, period), by which a long step need not be
    simulated whole: if a step has at least `few`, then `period` more always add the same exchanges.
    Both are `len(sizes)` if this is not known to hold. `sizes` are the samples of each micro-batch.

    Once its pipeline is full, 1F1B repeats its order of passes with each micro-batch or, with
    several stages per rank, with each pp micro-batches. Only ZeRO 2 and 3 exchange gradients or
    parameters in all of these passes, and need a full pipeline in the short step; others sum
    gradients in the last passes.
    """
    m, pp, stages = len(sizes), a.mesh.axes["pp"], len(a.stages)
    is_plain = a.steps_together and not a.strategy.lists and not a.strategy.averages
    if not is_plain or len({*sizes}) > 1 or asked_kind(a.config).packs:
        return m, m
    period = pp if stages > pp else 1
    least = max(3 * pp + 1, 2 * period) if a.store.zero > 1 else 2 * period
    return least + (m - least) % period, period


def repeated(fewer: Counter[Entry], more: Counter[Entry], periods: int) -> Counter[Entry]:
    """Extrapolates how often each exchange occurs: `fewer` has the counts of a short step, `more`
    those of a step with one more period of micro-batches; returns those of a step with `periods`
    more periods than `fewer`."""
    assert fewer.keys() == more.keys()
    return Counter({e: n + periods * (more[e] - n) for e, n in fewer.items()})


def _touched(run: Callable[[StepState, int], object], state: StepState, batches: int) -> int:
    """Simulates `batches` steps by `run(state, batches)`; returns the bytes that array functions
    read and write in them to pack and unpack messages. Kernels of the passes and of the update do
    not count."""
    with logged_calls() as calls:
        run(state, batches)
    return touched_bytes(call for call in calls if not isinstance(call.function, Kernel))


def _touched_by_replica(a: Arrangement, run: Callable[[StepState, int], object]) -> float:
    """For replicas that train alone for a round of some steps and are then averaged: returns the
    bytes that array functions of a replica read and write per step on average. They are computed
    from simulated rounds of one step and of two; `run(state, n)` simulates n steps."""
    every = a.strategy.result_steps(a.config)
    of_rounds = [_touched(run, StepState(), steps) for steps in (1, 2)[:every]]
    of_step = of_rounds[-1] - of_rounds[0]
    return of_step + (of_rounds[0] - of_step) / every


def _held(a: Arrangement, paper_rank: PaperRank) -> Memory:
    """Returns the memory that a rank holds between steps for its trained parameters."""
    store, windows = paper_rank.store, sum(paper_rank.state.windows.values())
    masters = 0 if store.masters is None else store.masters.nbytes
    values, gradients = store.parameter_bytes(), store.gradient_bytes()
    if isinstance(store, NodeStore):
        windows -= values + gradients
    optimizer_state = sum(array.nbytes for array in paper_rank.optimizer.state.values())
    slots = store.slot_bytes() + paper_rank.state.wide_terms
    if a.strategy.averages:
        slots += a.strategy.averages.copies(a) * (masters or values)
    return Memory(values, gradients, optimizer_state + masters, slots=slots, windows=windows)


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """Returns the memory that a rank holds between two steps over batches of `batch` samples."""
    sizes = {True: 0, False: 0}
    for x in untrained_on_paper(a, rank):
        sizes[not x.may_differ] += x.nbytes
    of_trained = step(a, rank, batch).held
    return of_trained._replace(parameters=of_trained.parameters + sizes[True], buffers=sizes[False])


def traffic(a: Arrangement, rank: int, batch: int) -> AxisTraffic:
    """Returns the bytes and messages that a rank sends along each axis in a step over `batch`
    samples."""
    by_axis = exchanges(a, rank, batch)
    return {axis: all_sent(a, rank, by_axis.get(axis, ())) for axis in TRAFFIC_AXES}


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Traffic:
    """Returns how much of a rank's traffic along dp in a step is parameters, which ZeRO gathers."""
    along_dp = exchanges(a, rank, batch).get("dp", ())
    return all_sent(a, rank, (each for each in along_dp if each.what == "parameters"))


def all_sent(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> Traffic:
    """Returns the bytes and messages that a rank sends for these exchanges, as the rounded mean per
    step."""
    in_period, period = sent_in_period(a, rank, exchanges)
    return in_period.over(period)


def sent_in_period(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> tuple[Traffic, int]:
    """Returns (the bytes and messages that a rank sends for these exchanges in some number of
    steps, that number). The number is such that each exchange occurs a whole number of times, since
    some occur only once in several steps."""
    logged = [*exchanges]
    period = max((each.every for each in logged), default=1)  # others happen in each of its steps
    in_period = (sent(a, each, rank).times(period // each.every) for each in logged)
    return sum(in_period, Traffic()), period
