"""All ways to sum an array over the ranks, checked for correctness and timed in turns."""

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
from timing import size_name

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Network, price
from nnmpi.comm import Comm
from nnmpi.comm.allreduce import measure
from nnmpi.comm.transport.mpi import MPI  # which starts it quietly

REFERENCE = "MPI_Allreduce"
NAMED = (*ALGORITHMS, "mpi", "shared")
NAMES = (*NAMED, "auto", "window")
"""What `Comm.all_reduce` takes, and a sum over memory from `Comm.shared`, where the data lives."""

ROUNDS, LEAST_ROUNDS = 75, 3
BATCH = 3e-4  # seconds of calls in a row; so short that many rounds go by undisturbed
LONGEST = 2.0  # seconds: where one call takes longer, that way is not timed
LONG = 0.1  # seconds: the first call tells how long the next takes, and larger sizes take longer
PERIOD = 65521  # elements, a prime: chunks that change places do not go unnoticed

Floats = NDArray[np.float32]


class Way(NamedTuple):
    """A sum: write `mine`, call, read `total`."""

    mine: Floats
    total: Floats
    call: Callable[[], object]
    free: Callable[[], object] = lambda: None  # every rank calls it


class Point(NamedTuple):
    """One size: the seconds of a call in each round, by way, as the slowest rank saw them."""

    nbytes: int
    ranks: int
    times: dict[str, list[float]]
    calls: dict[str, int]  # timed together in a round
    predicted: dict[str, float]  # seconds, of the ways that have a plan
    taken: str  # what auto took

    def seconds(self, name: str) -> float:
        return statistics.median(self.times[name])

    def ratio(self, name: str, other: str = REFERENCE) -> float:
        """The median quotient of two that ran in the same round."""
        pairs = zip(self.times[name], self.times[other], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def bus(self, name: str) -> float:
        """Bytes a second that each link of a ring would carry to be as fast."""
        return 2 * (self.ranks - 1) / self.ranks * self.nbytes / self.seconds(name)

    def best(self) -> str | None:
        """The fastest that has a name to choose it by."""
        return min((n for n in self.times if n in NAMED), key=self.seconds, default=None)


class WrongError(Exception):
    """A sum that is not the sum; every rank raises it with the same words."""


class Bench:
    """What all sizes share: the ranks, who takes part, and who became too slow to go on."""

    def __init__(self, comm: Comm, raw: MPI.Intracomm, names: Sequence[str], seconds: float):
        self.comm, self.raw = comm, raw
        self.names, self.seconds = (REFERENCE, *names), seconds
        self.slow: dict[int, dict[str, float]] = {}  # what is not timed: bytes, way, seconds
        self._last: dict[str, tuple[int, float]] = {}  # way -> bytes and seconds of a call
        self._gloo = start_gloo(raw) if "gloo" in names else None

    def point(self, nbytes: int, network: Network | None) -> Point | None:
        """Checks and times every way at one size; None where MPI itself takes too long."""
        if self._hopeless(REFERENCE, nbytes):
            return None
        names = [n for n in self.names if n == REFERENCE or not self._hopeless(n, nbytes)]
        array = np.zeros(nbytes // 4, np.float32)
        ways, taken = {name: self.way(name, array) for name in names}, ""
        total = np.resize(sum(_part(r) for r in range(self.comm.size)), array.size)
        single = {}
        for name, way in ways.items():
            first = self.check(name, way, total, nbytes)
            single[name] = first if first > LONG else self._once(way.call)
            self._last[name] = nbytes, single[name]
            if self._hopeless(name, nbytes) and name == REFERENCE:
                break
        timed = {name: ways[name] for name in single if single[name] <= LONGEST}
        if "auto" in timed:
            work = self.comm.start(array)
            work.wait()
            taken = work.call.algorithm
        times, calls = self._rounds(timed, single) if REFERENCE in timed else ({}, {})
        for way in ways.values():
            way.free()
        predicted = predict(self._planned(names), self.comm.size, nbytes, network)
        return Point(nbytes, self.comm.size, times, calls, predicted, taken) if times else None

    def _planned(self, names: Sequence[str]) -> list[str]:
        """Which go by their plan: across hosts `hierarchical` goes through shared memory."""
        hosts = len(set(self.raw.allgather(MPI.Get_processor_name())))
        return [n for n in names if n in ALGORITHMS and not (n == "hierarchical" and hosts > 1)]

    def way(self, name: str, array: Floats) -> Way:
        """The sum of that name over an array, or over memory of its own."""
        if name == "window":
            shared = self.comm.shared(array.size, "float32")
            return Way(shared.mine, shared.total, shared.all_reduce, shared.free)
        if name == REFERENCE:
            return Way(array, array, partial(self.raw.Allreduce, MPI.IN_PLACE, array))
        if name == "gloo":
            assert self._gloo is not None
            return Way(array, array, self._gloo(array))
        return Way(array, array, partial(self.comm.all_reduce, array, name))

    def check(self, name: str, way: Way, total: Floats, nbytes: int) -> float:
        """The seconds of a first call, whose result has to be the sum to the last bit.

        The numbers are whole and small, so that every order of adding gives the same: equal to the
        sum on every rank also means equal on all ranks.
        """
        way.mine[...] = np.resize(_part(self.comm.rank), total.size)
        seconds = self._once(way.call)
        wrong = np.flatnonzero(way.total.view(np.uint32) != total.view(np.uint32))[:1].tolist()
        what = [f"element {i} is {way.total[i]:g}, not {total[i]:g}" for i in wrong]
        for rank, words in enumerate(self.raw.allgather(what)):
            if words:
                raise WrongError(f"{name} at {size_name(nbytes)} on rank {rank}: {words[0]}")
        way.mine[...] = 0
        return seconds

    def _rounds(
        self, ways: Mapping[str, Way], single: Mapping[str, float]
    ) -> tuple[dict[str, list[float]], dict[str, int]]:
        """All ways in turns, in another order each round: all meet the same weather."""
        calls = {name: max(1, int(BATCH / max(single[name], 1e-7))) for name in ways}
        cost = sum(calls[name] * single[name] for name in ways) / len(ways)
        rounds = min(max(int(self.seconds / cost), LEAST_ROUNDS), ROUNDS)
        names, own = list(ways), np.zeros((rounds, len(ways)))
        order = np.random.default_rng(0)  # the same on all ranks
        for i in range(rounds):
            for j in order.permutation(len(names)).tolist():
                ways[names[j]].call()  # has its memory in the cache again, after the others
                own[i, j] = self._timed(ways[names[j]].call, calls[names[j]])
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
        """One call, as the slowest rank saw it."""
        return float(self.raw.allreduce(self._timed(call, 1), MPI.MAX))

    def _hopeless(self, name: str, nbytes: int) -> bool:
        """Whether a call takes too long, going by the last one; this is noted."""
        before, seconds = self._last.get(name, (nbytes, 0.0))
        likely = seconds * nbytes / before if seconds > LONG else seconds
        if likely > LONGEST:
            self.slow.setdefault(nbytes, {})[name] = likely
        return likely > LONGEST


@cache
def _part(rank: int) -> Floats:
    """What a rank brings, again and again: whole numbers that no other rank has in that order."""
    return np.random.default_rng(rank).integers(1, 100, PERIOD).astype(np.float32)


def fit(comm: Comm) -> tuple[Network, list[float]]:
    """alpha, beta and gamma, and the times of further ping-pongs over those of the fitted line."""
    network = measure.network(comm)
    off = []
    for nbytes in measure.SIZES:
        line = network.link.alpha + nbytes * network.link.beta
        seconds = measure.ping_pong(comm, nbytes)
        off.append(seconds / line)
        if seconds * measure.TURNS > measure.LONG:
            break
    return network, off


def predict(plans: Sequence[str], p: int, nbytes: int, network: Network | None) -> dict[str, float]:
    """Seconds by plan; nothing where nothing is sent."""
    if network is None:
        return {}
    return {name: price(ALGORITHMS[name], p, nbytes, network).seconds for name in plans}


def start_gloo(raw: MPI.Intracomm) -> Callable[[Floats], Callable[[], object]]:
    """PyTorch's own all-reduce between the same processes."""
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
