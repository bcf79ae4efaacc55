"""Measures a model on the ranks of a node: its units, sums, messages, updates, and the rest of a
step.

All ranks measure at the same time, because they share caches, memory and clock rates. For units and
steps the least of several times counts, or a low quantile: the time on a machine that nobody else
uses at the moment. Sums and updates are timed after other work, as in a step. Everything is
measured twice, at some distance in time, and averaged. For sums and updates, whose times vary most
beside other programs, the first measurement takes the lower quartile, the second one the upper
quartile.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from nnmpi.arrays import blas
from nnmpi.collectives.price import Link
from nnmpi.collectives.step import Collective
from nnmpi.comm import Comm, NoRoomError, OtherRankError, comm_self
from nnmpi.comm.allreduce.autotune import fits
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.recorder import NO_RECORDER, Recorder, current_recorder
from nnmpi.parallel.step.executor import StepState
from nnmpi.planning.exchange_time import IN_PLACE, curve_name
from nnmpi.planning.machine import TYPICAL, Curve, Machine, MeasuredModel, UnitTimes
from nnmpi.planning.unit_times import signature
from nnmpi.run.codec_call import codec_call
from nnmpi.run.network_fit import fitted_network
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.setup import Setup

SIZES = tuple(1 << k for k in range(8, 25, 2))
"""Bytes of the sums that are timed."""

FLUSHED = 1 << 22
"""Elements that are written between two timed calls: more than the caches of a core hold, because
in a step the passes also write between two sums or updates."""

LONG = 0.1
"""Seconds: if a sum takes longer, larger ones are not timed."""

MANY_MICRO_BATCHES = 8
"""Micro-batches of the second of two measured steps, which separates the cost of a micro-batch from
that of a step."""

POLL_SECONDS = 0.01
"""Seconds between two polls of a rank that waits for the first node."""

ROUNDS = 2
"""How often each measurement times units and steps; the least time counts."""

STEPS = 10
"""Steps of one rank that are timed in a round."""

CALLS = 20
"""How often each measurement times a sum or an update."""

QUARTILES = 0.25, 0.75
"""The quantile of these times that counts, in the first and in the second measurement."""

QUANTILE = 0.1
"""The quantile of the seconds of steps that counts."""


def processor() -> str:
    """The name of the processor."""
    return blas.cpu().get("model name") or platform.processor() or platform.machine()


def measure(setup: Setup, comm: Comm) -> Machine:
    """The measured Machine that the ranks of a Comm run on, with the units of a run's model; every
    rank calls it.

    Nodes are assumed to be alike: the first one measures itself, twice, and all measure the links
    between them. If there is one node only, links are those of a typical machine.
    """
    here, load = comm.node(), os.getloadavg()[0]
    node = comm.split(here[0])
    assert node is not None

    def twice() -> Machine:
        first, second = (_measure_node(setup, node, quantile) for quantile in QUARTILES)
        return first.averaged(second)._replace(load=load)

    def own() -> Machine | None:
        try:
            return all_or_none(node, lambda: twice() if here[0] == 0 else None)
        finally:
            node.free()
            _wait(comm)

    machine = gather_objects(comm, all_or_none(comm, own))[0]
    assert machine is not None
    if len(here) == comm.size:
        return machine
    first = comm.split(0 if comm.rank == here[0] else None)
    links = [] if first is None else [fitted_network(first).link]
    if first is not None:
        first.free()
    return machine._replace(far=Link(*gather_objects(comm, links)[0][0]))


def _wait(comm: Comm) -> None:
    """Waits for all ranks, asleep most of the time: hosts may share cores, as containers do."""
    met = comm.start(np.zeros(1), "doubling")
    while not met.poll():
        time.sleep(POLL_SECONDS)


def _measure_node(setup: Setup, comm: Comm, quantile: float) -> Machine:
    """The measurements of one node; `quantile` of the times of sums and updates counts."""
    config = setup.config
    network, sizes = fitted_network(comm), _micro_batches(_samples(setup))
    near = network.link if comm.size > 1 else TYPICAL.near
    sums = {name: curve for p in _group_sizes(comm) for name, curve in _sums(comm, p, quantile)}
    with closing(_session(setup, comm_self())) as session:
        model = _units(comm, session, sizes)
        speed, update = _speed(session, model), _update(comm, session, quantile)
        step, micro_batch = _overheads(comm, setup, model, update, session)
        numbers = sum(p.size for p in session.optimizer.parameters)
        moving = _moving(comm, numbers, quantile)
        coding = _coding(comm, setup.config, session, moving, quantile)
    parts = (_tp_units(comm, setup, tp, sizes) for tp in _group_sizes(comm))
    return Machine(
        *(processor(), comm.size, near, TYPICAL.far, network.gamma, sums),
        *({config.optimizer: update}, step, micro_batch, speed, (model, *filter(None, parts))),
        moving=moving,
        coding=coding,
    )


def _session(setup: Setup, comm: Comm, **options: Any) -> Session:
    """A session of the ranks of `comm`, arranged by these options, in a run of its own."""
    plain = {"plan": None, "verify": False, "check_copies": 0, "sync": "bsp", "compress": None}
    config: Config = replace(setup.config, **{**plain, **options})
    return Session(setup._replace(config=config), config, comm, RunState(setup), NO_RECORDER)


def _group_sizes(comm: Comm) -> list[int]:
    """The sizes of groups to measure: 2, 4, 8, ... as far as they divide the ranks, and all
    ranks."""
    powers = {1 << k for k in range(1, comm.size.bit_length())}
    return sorted({p for p in (*powers, comm.size) if p > 1 and not comm.size % p})


def _samples(setup: Setup) -> int:
    """The number of samples of a whole batch."""
    return min(setup.config.batch_size, len(setup.train.split.y))


def _micro_batches(n: int) -> list[int]:
    """The numbers of samples in a rank's micro-batch that are measured: three, the largest a whole
    batch. None is 1 if avoidable: BatchNorm1d needs a variance."""
    return sorted({max(n // MANY_MICRO_BATCHES, min(n, 2)), max(n // 2, min(n, 2)), n})


# ---- sums


def _sums(comm: Comm, p: int, quantile: float) -> Iterator[tuple[str, Curve]]:
    """Times collectives in groups of p ranks, all groups at once; yields a curve of seconds by
    bytes for each. Sums in shared memory are measured if all groups have room for it."""
    group = comm.split(comm.rank // p)
    assert group is not None
    calls: dict[tuple[Collective, str], Callable[[np.ndarray], object]] = {
        (Collective.ALL_REDUCE, "ring"): partial(group.all_reduce, algorithm="ring"),
        (Collective.ALL_REDUCE, "shared"): partial(group.all_reduce, algorithm="shared"),
        (Collective.ALL_REDUCE, "doubling"): partial(group.all_reduce, algorithm="doubling"),
        (Collective.REDUCE_SCATTER, "ring"): partial(group.reduce_scatter, algorithm="ring"),
        (Collective.ALL_GATHER, "ring"): partial(group.all_gather, algorithm="ring"),
    }
    window = None
    with suppress(NoRoomError):  # on all ranks
        window = group.shared(SIZES[-1] // 4, np.float32)
        # it sums elements that already lie in the window, as many as the array has
        in_place = window.all_reduce
        calls[Collective.ALL_REDUCE, IN_PLACE] = lambda array: in_place(0, array.size)
    for (collective, algorithm), call in calls.items():
        points = list[tuple[float, float]]()
        for nbytes in SIZES:
            all_reduce = partial(call, np.zeros(nbytes // 4, np.float32))
            if not all(gather_objects(comm, fits(all_reduce))):
                break
            points.append((float(nbytes), _cold_seconds(comm, all_reduce, quantile)))
            if points[-1][1] > LONG:
                break
        if points:
            yield curve_name(collective, algorithm, p), Curve(tuple(points))
    if window is not None:
        window.free()
    group.free()


def _cold_seconds(comm: Comm, call: Callable[[], object], quantile: float) -> float:
    """A quantile of the seconds of a call with cold caches, as after other work in a step; the mean
    over ranks."""
    flushed, times = np.zeros(FLUSHED, np.float32), list[float]()
    for _ in range(CALLS):
        flushed += 1.0
        comm.barrier()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.mean(gather_objects(comm, np.quantile(times, quantile))))


# ---- units


class ComputeClock(Recorder):
    """A clock that stands still while a rank exchanges activations with others."""

    waited = 0.0

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        self.waited += self.now() - began

    def __call__(self) -> float:
        """The seconds of computing so far."""
        return self.now() - self.waited


def _tp_units(comm: Comm, setup: Setup, tp: int, sizes: Sequence[int]) -> MeasuredModel | None:
    """The times of the units as `tp` ranks divide them; None if the model cannot be divided so."""
    try:
        session = _session(setup, comm, tp=tp)
    except (ValueError, OtherRankError):  # on all ranks
        return None
    with closing(session):
        return _units(comm, session, sizes)


def _units(comm: Comm, session: Session, sizes: Sequence[int]) -> MeasuredModel:
    """The times of a model's units, or of a rank's part of them along tp; means over the ranks."""
    graph, config = session.arrangement.graph, session.config
    rounds = [[_mean_units(comm, session, n) for n in sizes] for _ in range(ROUNDS)]
    least = [np.min(of_size, axis=0).tolist() for of_size in zip(*rounds, strict=True)]
    times = {n: [UnitTimes(*row) for row in rows] for n, rows in zip(sizes, least, strict=True)}
    return MeasuredModel(signature(graph), config.tp, config.dtype, times)


def _mean_units(comm: Comm, session: Session, samples: int) -> list[list[float]]:
    """The seconds of each unit's three passes (forward, input gradient, weight gradient), the mean
    over ranks."""
    graph, setup = session.arrangement.graph, session.setup
    x = setup.train.gather(np.arange(samples) % len(setup.train.split.y)).x
    comm.barrier()
    clock = ComputeClock()
    token = current_recorder.set(clock)
    costs = strategies.profile(
        *(session.model, graph, units(graph), x, setup.on),
        strategies.Timing(together=(comm,), clock=clock),
        session.config.dtype,
    )
    current_recorder.reset(token)
    rows = [[cost.forward, cost.input_gradient, cost.weight_gradient] for cost in costs]
    means: list[list[float]] = np.mean(gather_objects(comm, rows), axis=0).tolist()
    return means


def _speed(session: Session, measured: MeasuredModel) -> float:
    """Multiply-adds per second, in the forward passes of all units."""
    graph, n = session.arrangement.graph, max(measured.units)
    seconds = sum(unit.forward for unit in measured.units[n])
    multiplied = n * sum(work(graph, node) for node in graph.nodes)
    return multiplied / seconds


# ---- the rest of a step


def _update(comm: Comm, session: Session, quantile: float) -> float:
    """The optimizer's seconds per parameter element."""
    optimizer = session.optimizer
    for p in optimizer.parameters:
        p.has_grad = True
    numbers: int = sum(p.size for p in optimizer.parameters)
    return _cold_seconds(comm, partial(optimizer.step, lr_factor=0.0), quantile) / numbers


def _moving(comm: Comm, numbers: int, quantile: float) -> float:
    """The seconds in which an array function reads or writes a byte, by adding two arrays of so
    many elements."""
    a, b = np.ones(numbers, np.float32), np.ones(numbers, np.float32)
    return _cold_seconds(comm, partial(np.add, a, b), quantile) / (3 * a.nbytes)


def _coding(
    comm: Comm, config: Config, session: Session, moving: float, quantile: float
) -> dict[str, float]:
    """The seconds per element that the codec of --compress takes besides reading and writing, by
    its name; empty without one."""
    if config.compress is None:
        return {}
    parameters = session.optimizer.parameters
    call, nbytes = codec_call(config.compress, parameters)
    seconds = _cold_seconds(comm, call, quantile) - nbytes * moving
    return {config.compress: max(seconds, 0.0) / sum(p.size for p in parameters)}


def _overheads(
    comm: Comm, setup: Setup, measured: MeasuredModel, update: float, session: Session
) -> tuple[float, float]:
    """The seconds of a step, and of each of its micro-batches, that are not spent in units or the
    update."""
    n, numbers = _samples(setup), sum(p.size for p in session.optimizer.parameters)
    left, many = dict[int, float](), max(min(MANY_MICRO_BATCHES, n // 2), 1)
    with ExitStack() as stack:
        sessions = {
            count: stack.enter_context(closing(_session(setup, comm_self(), micro_batches=count)))
            for count in (1, many)
        }
        rounds = [{k: _step(comm, s) for k, s in sessions.items()} for _ in range(ROUNDS)]
    # step = fixed + count * (micro_batch + units) + update, solved for two counts
    for count in sessions:
        of_units = sum(unit.seconds for unit in measured.units[max(n // count, 1)])
        step = min(times[count] for times in rounds)
        left[count] = step - count * of_units - numbers * update
    micro_batch = max((left[many] - left[1]) / max(many - 1, 1), 0.0)
    return max(left[1] - micro_batch, 0.0), micro_batch


def _step(comm: Comm, session: Session) -> float:
    """The seconds of one rank's step over a whole batch, of the slowest of ranks that begin it
    together: in a layout, ranks wait for each other in every step."""
    times, batch = list[float](), _samples(session.setup)
    session.model.train()
    while len(times) < STEPS:
        with closing(session.strategy.steps(session.setup.train, StepState())) as steps:
            comm.barrier()
            began = time.perf_counter()
            for result in islice(steps, STEPS):
                times += [time.perf_counter() - began] * (result.samples == batch)
                comm.barrier()
                began = time.perf_counter()
    return float(np.quantile(np.max(gather_objects(comm, times), axis=0), QUANTILE))
