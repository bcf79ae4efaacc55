"""Every all-reduce implementation, checked for correctness and timed in interleaved rounds."""

import atexit
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.timing import Spread, ratio, size_name
from nnmpi.addons.planning.run import network_fit
from nnmpi.collectives import verify
from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Network, price
from nnmpi.comm import Comm
from nnmpi.comm.transport.mpi import MPI  # which starts it quietly
from nnmpi.options import user_code

REFERENCE = "MPI_Allreduce"
NAMED = (*ALGORITHMS, "mpi", "shared")
NAMES = (*NAMED, "auto", "window")
"""The algorithms of `Comm.all_reduce`, and `window`: a sum over memory from `Comm.shared`."""

MAX_ROUNDS, MIN_ROUNDS = 75, 3
BATCH = 3e-4  # seconds of consecutive calls; short, so that many rounds are undisturbed
MAX_CALL = 2.0  # seconds; an implementation that takes longer per call is not timed
LONG_CALL = 0.1  # seconds; from here on one call is enough to predict the next, and larger sizes
PERIOD = 65521  # elements; a prime, so that swapped chunks give a wrong sum

Floats = NDArray[np.float32]


class Implementation(NamedTuple):
    """An all-reduce: write `mine`, call, read `total`."""

    mine: Floats
    total: Floats
    call: Callable[[], object]
    free: Callable[[], object] = lambda: None  # collective


class Point(NamedTuple):
    """The results for one size; `times` are seconds per call of the slowest rank, by round."""

    nbytes: int
    ranks: int
    times: dict[str, list[float]]
    calls: dict[str, int]  # consecutive calls in a round
    predicted: dict[str, float]  # seconds, of the algorithms that have a plan
    taken: str  # the algorithm that auto chose

    def seconds(self, name: str) -> float:
        return statistics.median(self.times[name])

    def ratios(self, name: str, other: str = REFERENCE) -> Spread:
        """The quotient of their times in each round: its median and quartiles."""
        return ratio(self.times[name], self.times[other])

    def ratio(self, name: str, other: str = REFERENCE) -> float:
        """The median of that."""
        return self.ratios(name, other).median

    def bus(self, name: str) -> float:
        """Bus bandwidth: bytes per second on each link of a ring that takes the same time."""
        return 2 * (self.ranks - 1) / self.ranks * self.nbytes / self.seconds(name)

    def best(self) -> str | None:
        """The fastest algorithm that `Comm.all_reduce` accepts by name."""
        return min((n for n in self.times if n in NAMED), key=self.seconds, default=None)


class WrongError(Exception):
    """An all-reduce gave a wrong sum; every rank raises it with the same message."""


class Bench:
    """The state of all sizes: the ranks, the implementations, and those too slow to go on."""

    def __init__(self, comm: Comm, raw: MPI.Intracomm, names: Sequence[str], seconds: float):
        self.comm, self.raw = comm, raw
        self.names, self.seconds = (REFERENCE, *names), seconds
        self.slow: dict[int, dict[str, float]] = {}  # not timed: bytes -> implementation -> seconds
        # implementation -> bytes and seconds of its last call
        self._last: dict[str, tuple[int, float]] = {}
        self._gloo = start_gloo(raw) if "gloo" in names else None

    def point(self, nbytes: int, network: Network | None) -> Point | None:
        """Check and time every implementation at one size; None if MPI itself takes too long."""
        if self._too_slow(REFERENCE, nbytes):
            return None
        names = [n for n in self.names if n == REFERENCE or not self._too_slow(n, nbytes)]
        array = np.zeros(nbytes // 4, np.float32)
        made, taken = {name: self.implementation(name, array) for name in names}, ""
        total = np.resize(sum(_part(r) for r in range(self.comm.size)), array.size)
        single = {}
        for name, one in made.items():
            first = self.check(name, one, total, nbytes)
            single[name] = first if first > LONG_CALL else self._once(one.call)
            self._last[name] = nbytes, single[name]
            if self._too_slow(name, nbytes) and name == REFERENCE:
                break
        timed = {name: made[name] for name in single if single[name] <= MAX_CALL}
        if "auto" in timed:
            work = self.comm.start(array)
            work.wait()
            taken = work.call.algorithm
        times, calls = self._rounds(timed, single) if REFERENCE in timed else ({}, {})
        for one in made.values():
            one.free()
        predicted = predict(self._planned(names), self.comm.size, nbytes, network)
        return Point(nbytes, self.comm.size, times, calls, predicted, taken) if times else None

    def _planned(self, names: Sequence[str]) -> list[str]:
        """The algorithms that execute a plan; across hosts `hierarchical` uses shared memory."""
        hosts = len(set(self.raw.allgather(MPI.Get_processor_name())))
        plans = [n for n in names if n in ALGORITHMS or user_code.is_named(n)]
        return [n for n in plans if not (n == "hierarchical" and hosts > 1)]

    def implementation(self, name: str, array: Floats) -> Implementation:
        """The implementation of this name, on `array` or on memory of its own."""
        if name == "window":
            shared = self.comm.shared(array.size, "float32")
            free = partial(shared.free, check=False)  # nobody reads the views after it
            return Implementation(shared.mine, shared.total, shared.all_reduce, free)
        if name == REFERENCE:
            return Implementation(array, array, partial(self.raw.Allreduce, MPI.IN_PLACE, array))
        if name == "gloo":
            assert self._gloo is not None
            return Implementation(array, array, self._gloo(array))
        return Implementation(array, array, partial(self.comm.all_reduce, array, name))

    def check(self, name: str, one: Implementation, total: Floats, nbytes: int) -> float:
        """The seconds of a first call; raises WrongError unless its result is exact.

        The contributions are small integers, so the sum is the same in any order.
        """
        one.mine[...] = np.resize(_part(self.comm.rank), total.size)
        seconds = self._once(one.call)
        wrong = np.flatnonzero(one.total.view(np.uint32) != total.view(np.uint32))[:1].tolist()
        what = [f"element {i} is {one.total[i]:g}, not {total[i]:g}" for i in wrong]
        for rank, found in enumerate(self.raw.allgather(what)):
            if found:
                raise WrongError(f"{name} at {size_name(nbytes)} on rank {rank}: {found[0]}")
        one.mine[...] = 0
        return seconds

    def _rounds(
        self, made: Mapping[str, Implementation], single: Mapping[str, float]
    ) -> tuple[dict[str, list[float]], dict[str, int]]:
        """Interleaved rounds in random order, so that noise affects all implementations alike."""
        calls = {name: max(1, int(BATCH / max(single[name], 1e-7))) for name in made}
        cost = sum(calls[name] * single[name] for name in made) / len(made)
        rounds = min(max(int(self.seconds / cost), MIN_ROUNDS), MAX_ROUNDS)
        names, own = list(made), np.zeros((rounds, len(made)))
        order = np.random.default_rng(0)  # the same on all ranks
        for i in range(rounds):
            for j in order.permutation(len(names)).tolist():
                made[names[j]].call()  # warms the cache up
                own[i, j] = self._timed(made[names[j]].call, calls[names[j]])
        slowest = np.empty_like(own)
        self.raw.Allreduce(own, slowest, MPI.MAX)
        return dict(zip(names, slowest.T.tolist(), strict=True)), calls

    def _timed(self, call: Callable[[], object], calls: int) -> float:
        self.raw.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    def _once(self, call: Callable[[], object]) -> float:
        """The seconds of one call on the slowest rank."""
        return float(self.raw.allreduce(self._timed(call, 1), MPI.MAX))

    def _too_slow(self, name: str, nbytes: int) -> bool:
        """Whether a call would take too long, judging by the last one; recorded in `slow`."""
        before, seconds = self._last.get(name, (nbytes, 0.0))
        likely = seconds * nbytes / before if seconds > LONG_CALL else seconds
        if likely > MAX_CALL:
            self.slow.setdefault(nbytes, {})[name] = likely
        return likely > MAX_CALL


@cache
def _part(rank: int) -> Floats:
    """The contribution of a rank, to be repeated: integers in an order of its own."""
    return np.random.default_rng(rank).integers(1, 100, PERIOD).astype(np.float32)


def fit(comm: Comm) -> tuple[Network, list[float]]:
    """The fitted network, and the times of further ping-pongs relative to the fit."""
    network = network_fit.fitted_network(comm)
    off = []
    for nbytes in network_fit.MESSAGE_BYTES:
        line = network.link.alpha + nbytes * network.link.beta
        seconds = network_fit.ping_pong(comm, nbytes)
        off.append(seconds / line)
        if seconds * network_fit.TURNS > network_fit.MOST_SECONDS:
            break
    return network, off


def predict(plans: Sequence[str], p: int, nbytes: int, network: Network | None) -> dict[str, float]:
    """Predicted seconds by algorithm; empty without a network."""
    if network is None:
        return {}
    return {name: price(verify.find(name), p, nbytes, network).seconds for name in plans}


def start_gloo(raw: MPI.Intracomm) -> Callable[[Floats], Callable[[], object]]:
    """The all-reduce of PyTorch's gloo backend between the same processes."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    rank, folder = raw.Get_rank(), None
    if rank == 0:
        folder = tempfile.mkdtemp(prefix="nnmpi-gloo-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store: Any = f"file://{raw.bcast(folder)}/store"
    distributed.init_process_group("gloo", store, rank=rank, world_size=raw.Get_size())
    atexit.register(distributed.destroy_process_group)
    return lambda array: partial(distributed.all_reduce, torch.from_numpy(array))
