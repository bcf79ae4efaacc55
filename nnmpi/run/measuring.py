"""What the ranks of a node take for a model: its units, sums, messages, updates, and all else.

All ranks measure at the same time: caches, memory and clocks that they share count. A time is the
least, or a low one, of several: that of a machine that nobody else uses at the moment.
"""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from nnmpi import blas
from nnmpi.collectives.collective import Collective
from nnmpi.comm import Comm, comm_self
from nnmpi.comm.allreduce.autotune import fits, medians
from nnmpi.config import Config
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.planning.exchange_time import curve_name
from nnmpi.parallel.planning.machine import TYPICAL, Curve, Machine, MeasuredModel, UnitTimes
from nnmpi.parallel.planning.unit_times import signature
from nnmpi.run.network_fit import fitted_network
from nnmpi.run.trainer import Trainer

SIZES = tuple(1 << k for k in range(8, 25, 2))
"""Bytes of the sums that are timed."""

LONG = 0.1
"""Seconds: where one sum takes longer, larger ones are not timed."""

MANY = 8
"""Micro-batches of a step, to tell what each of them takes from what a step takes."""

STEPS = 10
"""Steps of one rank that are timed, of which the least time counts."""


def processor() -> str:
    """The name of the processor."""
    return blas.cpu().get("model name") or platform.processor() or platform.machine()


def measure(config: Config, comm: Comm) -> Machine:
    """The machine that the ranks of a Comm run on, and the units of the config's model on it; every
    rank calls it. Raises ValueError where they are on several nodes.

    Links between nodes are those of a typical machine.
    """
    _check_one_node(comm)
    plain = replace(config, epochs=1, steps=None, check_copies=0)
    network = fitted_network(comm)
    sums = {name: curve for p in _group_sizes(comm) for name, curve in _sums(comm, p)}
    with closing(Trainer(plain, comm=comm_self())) as one:
        model = _whole(comm, one, _micro_batches(config))
        speed, update = _speed(one, model), _update(comm, one)
        step, micro_batch = _fixed(comm, plain, model, update, one)
    return Machine(
        *(processor(), comm.size, network.link, TYPICAL.far, network.gamma, sums),
        *({config.optimizer: update}, step, micro_batch, speed, (model,)),
    )


def _check_one_node(comm: Comm) -> None:
    there = len({*gather_objects(comm, platform.node())})
    if there > 1:
        raise ValueError(
            f"the {comm.size} ranks are on {there} nodes, and what one of them does is measured: "
            "start as many ranks as one node has cores for, on one node"
        )


def _group_sizes(comm: Comm) -> list[int]:
    """2, 4, 8, ... as far as groups are equal, and all ranks."""
    powers = {1 << k for k in range(1, comm.size.bit_length())}
    return sorted({p for p in (*powers, comm.size) if p > 1 and not comm.size % p})


def _micro_batches(config: Config) -> list[int]:
    """Samples of a rank in a micro-batch: three numbers, the largest all that one rank may have."""
    n = config.batch_size
    return sorted({max(n // MANY, 1), max(n // 2, 1), n})


# ---- sums


def _sums(comm: Comm, p: int) -> Iterator[tuple[str, Curve]]:
    """The seconds of collectives in groups of p ranks, all at the same time; of sums in shared
    memory as far as all groups have room for them."""
    group = comm.split(comm.rank // p)
    assert group is not None
    calls: dict[tuple[Collective, str], Callable[[np.ndarray], object]] = {
        (Collective.ALL_REDUCE, "ring"): partial(group.all_reduce, algorithm="ring"),
        (Collective.ALL_REDUCE, "shared"): partial(group.all_reduce, algorithm="shared"),
        (Collective.ALL_REDUCE, "doubling"): partial(group.all_reduce, algorithm="doubling"),
        (Collective.REDUCE_SCATTER, "ring"): partial(group.reduce_scatter, algorithm="ring"),
        (Collective.ALL_GATHER, "ring"): partial(group.all_gather, algorithm="ring"),
    }
    for (collective, algorithm), call in calls.items():
        points = list[tuple[float, float]]()
        for nbytes in SIZES:
            one = partial(call, np.zeros(nbytes // 4, np.float32))
            if not all(gather_objects(comm, fits(one))):
                break
            (seconds,) = medians(comm, [one])
            points.append((float(nbytes), seconds))
            if seconds > LONG:
                break
        if points:
            yield curve_name(collective, algorithm, p), Curve(tuple(points))
    group.free()


# ---- units


def _whole(comm: Comm, one: Trainer, sizes: Sequence[int]) -> MeasuredModel:
    """The units of a model that one rank has all of: the means of the ranks."""
    graph = one.arrangement.graph
    found = {n: _mean_units(comm, one, n) for n in sizes}
    return MeasuredModel(signature(graph), 1, one.config.dtype, found)


def _mean_units(comm: Comm, one: Trainer, samples: int) -> list[UnitTimes]:
    graph, on = one.arrangement.graph, one.session.setup.on
    x = one.train.gather(np.arange(samples) % len(one.train.split.y)).x
    comm.barrier()
    costs = plan.profile(
        one.model, graph, units(graph), x, on, together=(comm,), dtype=one.config.dtype
    )
    rows = [[cost.forward, cost.input_gradient, cost.weight_gradient] for cost in costs]
    return [UnitTimes(*row) for row in np.mean(gather_objects(comm, rows), axis=0).tolist()]


def _speed(one: Trainer, measured: MeasuredModel) -> float:
    """Multiplications and additions a second, in forward passes of all units."""
    graph, n = one.arrangement.graph, max(measured.units)
    seconds = sum(unit.forward for unit in measured.units[n])
    multiplied = n * sum(work(graph, node) for node in graph.nodes)
    return multiplied / seconds


# ---- the rest of a step


def _update(comm: Comm, one: Trainer) -> float:
    """Seconds of the optimizer a number."""
    optimizer = one.optimizer
    for p in optimizer.parameters:
        p.has_grad = True
    numbers: int = sum(p.size for p in optimizer.parameters)
    times = []
    for _ in range(STEPS):
        comm.barrier()
        began = time.perf_counter()
        optimizer.step(0.0)
        times.append(time.perf_counter() - began)
    return _mean(comm, min(times)) / numbers


def _fixed(
    comm: Comm, config: Config, measured: MeasuredModel, update: float, one: Trainer
) -> tuple[float, float]:
    """Seconds of a step, and of each of its micro-batches, besides units and the update."""
    n, numbers = config.batch_size, sum(p.size for p in one.optimizer.parameters)
    left, many = dict[int, float](), min(MANY, n)
    for count in (1, many):
        of_units = sum(unit.seconds for unit in measured.units[max(n // count, 1)])
        with closing(Trainer(replace(config, micro_batches=count), comm=comm_self())) as trainer:
            left[count] = _step(comm, trainer) - count * of_units - numbers * update
    micro_batch = max((left[many] - left[1]) / max(many - 1, 1), 0.0)
    return max(left[1] - micro_batch, 0.0), micro_batch


def _step(comm: Comm, trainer: Trainer) -> float:
    """Seconds of a step of one rank."""
    times = list[float]()
    trainer.model.train()
    while len(times) < STEPS:
        with closing(trainer.strategy.steps(trainer.train, trainer.state)) as steps:
            began = time.perf_counter()
            for _ in islice(steps, STEPS):
                now = time.perf_counter()
                times.append(now - began)
                began = now
    return _mean(comm, min(times))


def _mean(comm: Comm, seconds: float) -> float:
    """Over the ranks."""
    return float(np.mean(gather_objects(comm, seconds)))
