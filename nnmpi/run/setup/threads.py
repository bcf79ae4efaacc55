"""Chooses the number of BLAS threads of a rank, by the sizes of its matrix products.

A thread of OpenBLAS spins while it waits for another one, so threads in small products cost more
than they save; and if another program computes on one of the cores, all threads wait for the one
that does not run. The number depends on sizes and cores alone: with another number of threads
OpenBLAS adds in another order, and a run should give the same bits each time.

More threads than one are used if more than half of the work is in linear layers with at least 2^23
multiplications per thread: at most one per core of the rank's share of those that its node,
container or job may use. Beside one other program on two cores, steps of mlp:784-1024-1024-10 in
batches of 128 took nine times as long on two threads as on one; on a quiet machine, 0.6 of it.
"""

import os

from nnmpi.arrays import blas
from nnmpi.comm import Comm
from nnmpi.nn import Linear
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.mesh import REPLICAS

LEAST = 1 << 23
"""The fewest multiplications per thread: about 0.1 ms, ten times a synchronization."""


def useful_threads(a: Arrangement, cores: int) -> int:
    """Returns the largest number of threads, at most one per core, for which more than half of the
    work is in large products of linear layers: others are small, or compiled for one thread."""
    if a.strategy.one_thread:
        return 1
    rows = a.config.batch_size / min(a.config.micro_batches, a.config.batch_size)
    rows /= a.mesh.count(*REPLICAS, "tp")
    works = [(node.layer is Linear, rows * work(a.graph, node)) for node in a.graph.nodes]
    total = sum(size for _, size in works)

    def is_useful(n: int) -> bool:
        large = (size for is_linear, size in works if is_linear and size >= n * LEAST)
        return sum(large) > total / 2

    return next((n for n in range(cores, 1, -1) if is_useful(n)), 1)


def agreed_threads(a: Arrangement, comm: Comm) -> int:
    """Returns one number of BLAS threads for all ranks, so that values that several ranks compute
    have the same bits. If a thread moves messages, two cores are left to it and to the system."""
    cores = blas.cores(len(comm.node())) - 2 * ("thread" in a.progress)
    return min(gather_objects(comm, useful_threads(a, max(cores, 1))))


def reason(a: Arrangement, useful: int, cores: int) -> str:
    """Says why this number of BLAS threads: by the user, or for `useful` cores."""
    if a.strategy.one_thread:
        return a.strategy.name
    if name := blas.set_by_user():
        return f"{name} is set"
    return f"the matrix products of this model are large enough for {useful} of {cores} cores"


def advice(a: Arrangement, useful: int) -> str:
    """Returns advice if BLAS has too many threads, or they wait for programs; or ""."""
    n, load = blas.threads(), os.getloadavg()[0]
    if n == 1 or blas.set_by_user() or a.cluster.has_devices:
        return ""
    if n > useful:
        return (
            f"BLAS has {n} threads, and the matrix products of this model are large enough for "
            f"{useful}: call nnmpi.blas.default_threads({useful}) before, or set "
            f"OPENBLAS_NUM_THREADS={useful}"
        )
    if load > (os.cpu_count() or 1):
        return (
            f"the load is {load:.1f} on {os.cpu_count()} cores, and {n} threads of BLAS wait for "
            "each other beside other programs: set OPENBLAS_NUM_THREADS=1"
        )
    return ""
