"""Cluster: facts about a job's machines, by which work is arranged."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.addons import Table
from nnmpi.arrays import devices
from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.blas import cores, threads
from nnmpi.comm import Comm
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.wire import Wire

PLENTY = 1 << 62
"""The bytes of free shared memory that are assumed where they cannot be measured."""


class Cluster(NamedTuple):
    """Facts about all ranks of a job; tuples have one entry for each rank.

    nodes        the number of the rank's node; ranks with the same number share memory
    free_memory  the bytes of shared memory (as in /dev/shm) that are free on the rank's node
    spare_cores  cores of a rank besides those that BLAS uses
    any_thread   whether any thread may call MPI (MPI_THREAD_MULTIPLE)
    devices      the index of the rank's GPU on its node, which ranks may share; None: the CPU
    survives     whether the MPI library lets the other ranks continue if one is lost
    libraries    the names of all-reduces of GPU libraries, such as nccl, that all ranks found
    """

    nodes: tuple[int, ...]
    free_memory: tuple[int, ...]
    spare_cores: tuple[int, ...]
    any_thread: bool
    devices: tuple[int | None, ...]
    survives: bool = False
    libraries: tuple[str, ...] = ()

    @classmethod
    def on_paper(cls, ranks: int, nodes: int = 1, device: str = "cpu") -> Self:
        """Returns a Cluster for simulations: `ranks` ranks on nodes of about equal size,
        consecutive ranks together. With device "cuda", each rank has a GPU of its own."""
        node_of_rank = np.arange(ranks) * nodes // ranks
        gpus = np.arange(ranks) - np.searchsorted(node_of_rank, node_of_rank)
        devices = tuple(gpus.tolist()) if device == "cuda" else (None,) * ranks
        return cls(
            tuple(node_of_rank.tolist()),
            (PLENTY,) * ranks,
            (0,) * ranks,
            any_thread=False,
            devices=devices,
        )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def has_devices(self) -> bool:
        """True if ranks compute on GPUs; either all ranks do, or none."""
        return self.devices[0] is not None

    def counts(self, ranks: Iterable[int]) -> Counter[int]:
        """Returns how many of these ranks are on each node."""
        return Counter(map(self.nodes.__getitem__, ranks))

    def near(self, rank: int, ranks: Iterable[int]) -> tuple[int, ...]:
        """Returns those of `ranks` that are on the node of `rank`."""
        return self.on_node(self.nodes[rank], ranks)

    def on_node(self, node: int, ranks: Iterable[int]) -> tuple[int, ...]:
        """Returns those of `ranks` that are on a node."""
        return tuple(r for r in ranks if self.nodes[r] == node)

    def on_one_node(self, ranks: tuple[int, ...]) -> bool:
        """Returns True if all these ranks are on the same node."""
        return len({*map(self.nodes.__getitem__, ranks)}) == 1


# ---- discover: the facts that ranks exchange before anything is arranged


class LibrarySums(NamedTuple):
    """An all-reduce of a GPU library, such as NCCL.

    is_found  (backend): whether this rank finds the library
    check     (backend): raises ValueError if this rank does not find the library
    suits     (cluster): whether --allreduce auto chooses the library, given that all ranks found it
    refuse    (cluster): raises ValueError if the library cannot be used
    connect   (layout, backend): makes the library carry out collectives of replicas and along tp
    wire      (comm, array): returns an object that carries out collectives of `comm` on arrays like
              `array`, on a CUDA stream of its own
    """

    is_found: Callable[[Backend], bool]
    check: Callable[[Backend], object]
    suits: Callable[[Cluster], bool]
    refuse: Callable[[Cluster], None]
    connect: Callable[[Layout, Backend], None]
    wire: Callable[[Comm, Array], Wire]


class DeviceParts(NamedTuple):
    """The functions by which a run on a device other than the CPU differs.

    set_up    (config, backend): makes settings of the whole process
    deferred  (spec, store, optimizer, update): makes ends of steps whose outcome the host reads one
              step later; None if it has to read it at once
    captured  (backend, stage, criteria, forward, micro-batch): has a stage's passes on the device;
              its `acquire` returns a Replay that no micro-batch uses now
    """

    set_up: Callable[[Config, Backend], None]
    deferred: Callable[..., Any]
    captured: Callable[..., Any]


DEVICE_PARTS: Table[DeviceParts] = Table("device_parts")
"""By a device: the functions by which a run on it differs."""

LIBRARY_SUMS: Table[LibrarySums] = Table("library_sums")
"""By name of an all-reduce: the LibrarySums of that name."""


def common_backend(comm: Comm, on: Backend) -> Backend:
    """Returns the backend on which all ranks compute: GPUs if every rank has found one, else the
    CPU. Every rank calls it. Rank i of a node takes its GPU i modulo their number."""
    if not all(gather_objects(comm, not on.is_host)):
        return CPU
    devices.choose(on, comm.node().index(comm.rank))
    return on


def discover(comm: Comm, on: Backend) -> Cluster:
    """Returns the Cluster that the ranks of `comm` run on: each finds facts about itself, and all
    exchange them. Every rank calls it."""
    node = comm.node()
    spare = cores(len(node)) - threads()
    mine = [*_libraries(on)] if comm.size > 1 and not on.is_host else []
    # one exchange for all facts: each gather is two collectives
    facts = node[0], comm.free_memory(), spare, comm.any_thread, devices.address(on), mine
    nodes, free, cores_left, any_thread, addresses, libraries = zip(
        *gather_objects(comm, facts), strict=True
    )
    threads_of_mpi = all(any_thread)
    used = gpu_indices(nodes, addresses)
    common = tuple(name for name in mine if all(name in of_rank for of_rank in libraries))
    return Cluster(*(nodes, free, cores_left, threads_of_mpi, used), comm.fault_tolerant, common)


def _libraries(on: Backend) -> Iterator[str]:
    """Yields the names of the all-reduces of GPU libraries that this rank finds."""
    for name in LIBRARY_SUMS.where:
        if LIBRARY_SUMS.needed(name).is_found(on):
            yield name


def gpu_indices(nodes: Sequence[int], addresses: Sequence[str | None]) -> tuple[int | None, ...]:
    """Returns the index of each rank's GPU on its node, by bus addresses; None for a rank without
    one.

    Device numbers would not do: processes that are shown one GPU each all call it number 0.
    """
    pairs = [*zip(nodes, addresses, strict=True)]
    gpus_of = {n: sorted({gpu for m, gpu in pairs if m == n and gpu}) for n in nodes}
    return tuple(None if gpu is None else gpus_of[n].index(gpu) for n, gpu in pairs)
