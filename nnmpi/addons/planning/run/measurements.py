"""Measures a machine: messages and collectives of its ranks, the optimizer's update, and the
overheads of a step.

All ranks measure at the same time, because they share caches, memory and clock rates. Of the times
of steps and of the model's units the least one counts, or a low quantile: the time on a machine
without other programs. Sums and updates are timed after other work, as in a step. Each measurement
adds fields of a Machine to a dict, or raises OutOfTimeError on all ranks."""

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi import addons
from nnmpi.addons.planning.exchange_time import IN_PLACE, curve_name
from nnmpi.addons.planning.machine import TYPICAL, Curve
from nnmpi.addons.planning.run.deadline import Deadline, OutOfTimeError
from nnmpi.addons.planning.run.network_fit import fitted_network
from nnmpi.addons.planning.run.timing import fits
from nnmpi.arrays import blas
from nnmpi.collectives.algorithms import Collective
from nnmpi.comm import Comm, NoRoomError, comm_self
from nnmpi.options.config import Config
from nnmpi.options.config import options as fields_of
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.recorder import NO_RECORDER
from nnmpi.parallel.step.executor import StepState
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.setup import Setup

SUM_BYTES = tuple(1 << k for k in range(8, 25, 2))
"""The lengths, in bytes, of the sums that are timed."""

FLUSHED = 1 << 22
"""Elements written between timed calls, to fill caches as passes do."""

MOST_SECONDS = 0.1
"""If a sum takes more seconds than this, larger ones are not timed."""

MANY_MICRO_BATCHES = 8
"""Micro-batches of the second measured step: the difference is their cost."""

ROUNDS = 2
"""The number of times that each measurement times units and steps; the least time counts."""

STEPS = 10
"""The number of steps on one rank that are timed in a round."""

CALLS = 20
"""The number of times that a sum or an update is timed."""

QUANTILE = 0.1
"""The quantile of the times of steps that counts as the time of a step."""


Fields: TypeAlias = dict[str, Any]
"""Fields of a Machine, by name, to which measurements add."""


def processor() -> str:
    """Returns the name of the processor."""
    return blas.cpu().get("model name") or platform.processor() or platform.machine()


class Node(NamedTuple):
    """The ranks of one node, which together measure its speed until a deadline. A collective or
    update is timed several times; its result is the quantile `quantile` of these times."""

    comm: Comm
    deadline: Deadline
    quantile: float

    def check(self) -> None:
        """Synchronizes the node's ranks; all raise OutOfTimeError after the deadline."""
        self.deadline.check(self.comm)

    def cold_seconds(self, call: Callable[[], object]) -> float:
        """Returns the seconds of a call when caches do not have its data, as after other work in a
        step: on each rank the node's quantile of several calls, then the mean over ranks."""
        flushed, times = np.zeros(FLUSHED, np.float32), list[float]()
        for _ in range(CALLS):
            flushed += 1.0
            self.check()
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return float(np.mean(gather_objects(self.comm, np.quantile(times, self.quantile))))


def session_of(setup: Setup, comm: Comm, **options: Any) -> Session:
    """Opens a session on these ranks, arranged by these options, to measure."""
    plain = {option.name: option.default for option in fields_of(("sync", "equality"))}
    plain |= {"plan": None, "check_copies": 0, **dict.fromkeys(addons.table("codecs"))}
    config: Config = replace(setup.config, **{**plain, **options})
    return Session(setup._replace(config=config), config, comm, RunState(setup), NO_RECORDER)


def group_sizes(comm: Comm) -> list[int]:
    """Returns group sizes to measure: powers of 2 that divide the ranks, and all ranks."""
    powers = {1 << k for k in range(1, comm.size.bit_length())}
    return sorted({p for p in (*powers, comm.size) if p > 1 and not comm.size % p})


def samples(setup: Setup) -> int:
    """Returns the number of samples in a whole batch."""
    return min(setup.config.batch_size, len(setup.train.split.y))


def micro_batches(n: int) -> list[int]:
    """Returns up to three sizes of micro-batches to measure, of which the largest is the batch, and
    1 is avoided if possible, since BatchNorm1d needs a variance."""
    return sorted({max(n // MANY_MICRO_BATCHES, min(n, 2)), max(n // 2, min(n, 2)), n})


# ---- messages and sums


def messages(node: Node, fields: Fields) -> None:
    """Measures seconds of a node's messages and of adding a byte, for `fields`."""
    network = fitted_network(node.comm, node.deadline)
    fields |= {
        "near": network.link if node.comm.size > 1 else TYPICAL.near,
        "adding": network.gamma,
    }


def sums(node: Node, p: int, fields: Fields) -> None:
    """Measures collectives in groups of p ranks, all at the same time, as curves of seconds by
    bytes. Sums in shared memory are measured only if it has room for all groups."""
    group, curves = node.comm.split(node.comm.rank // p), fields.setdefault("sums", {})
    assert group is not None
    calls: dict[tuple[Collective, str], Callable[[np.ndarray], object]] = {
        (Collective.ALL_REDUCE, "ring"): partial(group.all_reduce, algorithm="ring"),
        (Collective.ALL_REDUCE, "shared"): partial(group.all_reduce, algorithm="shared"),
        (Collective.ALL_REDUCE, "doubling"): partial(group.all_reduce, algorithm="doubling"),
        (Collective.REDUCE_SCATTER, "ring"): partial(group.reduce_scatter, algorithm="ring"),
        (Collective.ALL_GATHER, "ring"): partial(group.all_gather, algorithm="ring"),
    }
    window, late = None, list[str]()
    with suppress(NoRoomError):  # on all ranks
        window = group.shared(SUM_BYTES[-1] // 4, np.float32)
        # it sums elements that already lie in the window, as many as the array has
        in_place = window.all_reduce
        calls[Collective.ALL_REDUCE, IN_PLACE] = lambda array: in_place(0, array.size)
    for (collective, algorithm), call in calls.items():
        name = curve_name(collective, algorithm, p)
        try:
            if points := (*_points(node, call),):
                curves[name] = Curve(points)
        except OutOfTimeError:
            late.append(name)
    if window is not None:
        window.free()
    group.free()
    if late:
        raise OutOfTimeError(f"sums of {p} ranks: {', '.join(late)}")


def _points(node: Node, call: Callable[[np.ndarray], object]) -> Iterator[tuple[float, float]]:
    """Yields (bytes, measured seconds) of the collective `call`, for ascending lengths."""
    for nbytes in SUM_BYTES:
        node.check()
        of_zeros = partial(call, np.zeros(nbytes // 4, np.float32))
        if not all(gather_objects(node.comm, fits(of_zeros))):
            return
        seconds = node.cold_seconds(of_zeros)
        yield float(nbytes), seconds
        if seconds > MOST_SECONDS:
            return


# ---- the rest of a step


def update(node: Node, session: Session, fields: Fields) -> None:
    """Measures the optimizer's seconds per element, for `fields`."""
    optimizer = session.optimizer
    for p in optimizer.parameters:
        p.has_grad = True
    seconds = node.cold_seconds(partial(optimizer.step, lr_factor=0.0)) / _elements(session)
    fields["updates"] = {session.config.optimizer: seconds}


def moving(node: Node, session: Session, fields: Fields) -> None:
    """Measures the seconds of an array function for each byte that it reads or writes."""
    a, b = np.ones((2, _elements(session)), np.float32)
    fields["moving"] = node.cold_seconds(partial(np.add, a, b)) / (3 * a.nbytes)


def coding(
    node: Node, codec: str, call_of: Callable[..., Any], session: Session, fields: Fields
) -> None:
    """Measures a codec's seconds per element, without the time to read and write memory.
    call_of(parameters) returns (a function that encodes and decodes their gradients, the bytes that
    it reads and writes)."""
    call, nbytes = call_of(session.optimizer.parameters)
    seconds = node.cold_seconds(call) - nbytes * fields["moving"]
    fields["coding"] = {codec: max(seconds, 0.0) / _elements(session)}


def overheads(node: Node, session: Session, fields: Fields) -> None:
    """Measures what a step, and each micro-batch, takes beside layers and the update."""
    setup, (measured, *_) = session.setup, fields["models"]
    n, seconds_of_update = samples(setup), fields["updates"][session.config.optimizer]
    left, many = dict[int, float](), max(min(MANY_MICRO_BATCHES, n // 2), 1)
    with ExitStack() as stack:
        sessions = {
            count: stack.enter_context(closing(session_of(setup, comm_self(), micro_batches=count)))
            for count in (1, many)
        }
        rounds = [{k: _step(node, s) for k, s in sessions.items()} for _ in range(ROUNDS)]
    # step = fixed + count * (micro_batch + units) + update, solved for two counts
    for count in sessions:
        of_units = sum(unit.seconds for unit in measured.units[max(n // count, 1)])
        step = min(times[count] for times in rounds)
        left[count] = step - count * of_units - _elements(session) * seconds_of_update
    micro_batch = max((left[many] - left[1]) / max(many - 1, 1), 0.0)
    fields |= {"step": max(left[1] - micro_batch, 0.0), "micro_batch": micro_batch}


def _elements(session: Session) -> int:
    """Returns the number of elements of all parameters."""
    return sum(p.size for p in session.optimizer.parameters)


def _step(node: Node, session: Session) -> float:
    """Returns the seconds of a training step over a whole batch that each rank makes without the
    others: those of the slowest rank, since ranks of a layout wait for each other in every step."""
    times, batch = list[float](), samples(session.setup)
    session.model.train()
    while len(times) < STEPS:
        with closing(session.strategy.steps(session.setup.train, StepState())) as steps:
            node.check()
            began = time.perf_counter()
            for result in islice(steps, STEPS):
                times += [time.perf_counter() - began] * (result.samples == batch)
                node.check()
                began = time.perf_counter()
    return float(np.quantile(np.max(gather_objects(node.comm, times), axis=0), QUANTILE))
