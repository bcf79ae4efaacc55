"""Measures alpha, beta, gamma (seconds of a message, a byte sent, a byte added) of a machine."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

import numpy as np

from nnmpi.addons.planning.run.deadline import Deadline, OutOfTimeError
from nnmpi.addons.planning.run.timing import medians
from nnmpi.collectives.price import Link, Network
from nnmpi.collectives.step import Algorithm, Ranks, Step, only
from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects

MESSAGE_BYTES = tuple(256 << 2 * k for k in range(8))  # bytes, to 4 MiB
TURNS = 8  # messages of a ping-pong
BURST = 0.012  # seconds after which a link has forgotten how long it was idle
CALLS = 8  # of a burst, after which ranks agree on whether it has lasted that long
MOST_SECONDS = 0.05  # seconds: where one call takes longer, larger sizes are not timed


def _ping_pong(t: int, r: Ranks, p: int) -> Step:
    """Round t of ping-pong: ranks 0 and 1, 2 and 3, ... each send to and receive from their partner
    at the same time. A last odd rank does nothing."""
    partner = only((r ^ 1) < p, r ^ 1)
    return Step(partner, (0, 1), partner, (1, 2), False)


PING_PONG = Algorithm(lambda p: TURNS, lambda p: 2, _ping_pong)


def ping_pong(comm: Comm, nbytes: int) -> float:
    """Measures the seconds of a message of `nbytes` bytes, while all ranks exchange in pairs.

    Some messages are sent before the clock starts: a link may pass a short burst faster than the
    rate that is to be measured.
    """
    call = partial(comm.carry_out, PING_PONG, np.zeros(2 * nbytes, np.uint8))
    (once,) = medians(comm, [call])
    began = perf_counter()
    for k in range(int(BURST / max(once, 1e-6))):
        call()
        # beside other programs one call may take a thousand times as long as another
        if k % CALLS == 0 and _mean(comm, perf_counter() - began) > BURST:
            break
    (seconds,) = medians(comm, [call])
    return seconds / TURNS


def _mean(comm: Comm, seconds: float) -> float:
    row = np.array([seconds])
    comm.all_reduce(row, "doubling")
    return float(row[0]) / comm.size


def fit_line(sizes: Sequence[int], times: Sequence[float]) -> Link:
    """Returns alpha and beta of the line alpha + beta n that fits the times best, by least squares.

    An error is weighted by 1 / sqrt(time). With weight 1 / time, short messages would determine
    beta; with equal weights, long ones would determine alpha.
    """
    n, t = np.asarray(sizes, float), np.asarray(times)
    w = t**-0.5
    a, b = np.linalg.lstsq(np.stack([w, n * w], 1), t * w, rcond=None)[0]
    return Link(max(float(a), 0.0), max(float(b), 0.0))


def fitted_network(comm: Comm, deadline: Deadline | None = None) -> Network:
    """Measures the cost of messages and additions while all ranks are busy; every rank calls it.

    If the number of ranks is odd, the last one has no partner, and waits. Raises OutOfTimeError if
    the deadline passes before the end.
    """
    deadline = deadline or Deadline()
    if comm.size > 1 and comm.size % 2:
        return _of_pairs(comm, deadline)
    times: list[float] = []
    for nbytes in MESSAGE_BYTES:
        deadline.check(comm)
        times.append(ping_pong(comm, nbytes))
        if times[-1] * TURNS > MOST_SECONDS:
            break
    a, b = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    (adding,) = medians(comm, [partial(np.add, a, b, a)])
    return Network(fit_line(MESSAGE_BYTES[: len(times)], times), adding / a.nbytes)


def _of_pairs(comm: Comm, deadline: Deadline) -> Network:
    """Measures in pairs on all ranks but the last, odd one, which gets the result."""
    pairs, network = comm.split(int(comm.rank == comm.size - 1)), None
    assert pairs is not None
    with suppress(OutOfTimeError):  # of these ranks; the last one does not know yet
        if pairs.size > 1:
            network = fitted_network(pairs, deadline)
    pairs.free()
    measured = gather_objects(comm, network)[0]
    if measured is None:
        raise OutOfTimeError
    return measured
