"""discover: what ranks have to ask each other before it is decided what each of them does."""

from collections.abc import Sequence

from nnmpi.arrays import devices
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.arrays.blas import cores, threads
from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.cluster import Cluster


def chosen(comm: Comm, on: Backend) -> Backend:
    """The backend of all ranks: the CPU, unless each has found a device; every rank calls it.

    The rank within its node picks one of the devices that are there.
    """
    if not all(gather_objects(comm, not on.is_host)):
        return CPU
    devices.choose(on, comm.node().index(comm.rank))
    return on


def discover(comm: Comm, on: Backend) -> Cluster:
    """The cluster of a Comm; every rank calls it."""
    node = comm.node()
    spare = cores(len(node)) - threads()
    nccl = comm.size > 1 and devices.has_nccl(on)
    own = node[0], comm.free_memory(), spare, comm.any_thread, devices.address(on), nccl
    nodes, free, cores_left, any_thread, addresses, nccls = zip(
        *gather_objects(comm, own), strict=True
    )
    threads_of_mpi = all(any_thread)
    used = numbered(nodes, addresses)
    return Cluster(
        *(nodes, free, cores_left, threads_of_mpi, used), comm.fault_tolerant, all(nccls)
    )


def numbered(nodes: Sequence[int], addresses: Sequence[str | None]) -> tuple[int | None, ...]:
    """The GPUs of each node counted in the order of their addresses.

    Processes that are shown one GPU each all call it number 0.
    """
    both = [*zip(nodes, addresses, strict=True)]
    known = {n: sorted({gpu for m, gpu in both if m == n and gpu}) for n in nodes}
    return tuple(None if gpu is None else known[n].index(gpu) for n, gpu in both)
