"""The subjects of benchmarks/scaling.py, and the processes that run them."""

import os
import socket
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lib import jobs, workloads
from lib.jobs import Process
from lib.libraries import KEPT_MEMORY
from lib.workloads import Reduction

BASELINE = "DDP T+"
OTHERS = ("mpi4jax", "JAX")
"""What nnmpi is compared with beside PyTorch."""
NO_REDUCTION = "apart"  # independent ranks: how far cores slow each other down
WITH_MPI = "mpi"


class Subject(NamedTuple):
    """What is timed: a library, its all-reduce algorithm or variant, and the number of ranks."""

    name: str
    library: str
    option: str
    ranks: int

    @property
    def processes(self) -> int:
        """How many there are: JAX has one, with as many cores as others have ranks."""
        return 1 if self.option.isdigit() else self.ranks


def serve_nnmpi(folder: Path, option: str) -> None:
    """Run a rank of nnmpi."""
    from nnmpi import comm

    world = comm.world()
    reduction = Reduction(enabled=False) if option == NO_REDUCTION else Reduction(option)
    steps = partial(workloads.nnmpi_steps, reduction=reduction)
    jobs.serve(folder, world.rank, world.barrier, steps)


def serve_torch(folder: Path, option: str) -> None:
    """Run a process of PyTorch; a single one does not use DDP."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    barrier: Callable[[], object] = lambda: None  # noqa: E731
    if ranks > 1:
        distributed.init_process_group("gloo")
        barrier = distributed.barrier
    steps = partial(workloads.torch_steps, ranks=ranks, rank=rank, best=option == "best")
    jobs.serve(folder, rank, barrier, steps)
    if ranks > 1:
        distributed.destroy_process_group()


def serve_jax(folder: Path, option: str) -> None:
    """Run a rank of mpi4jax on one core, or JAX in one process on a number of cores.

    JAX computes on as many threads as it finds cores, so they are set before it is imported.
    """
    cores = sorted(os.sched_getaffinity(0))
    if option == WITH_MPI:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
        from lib import jax_steps

        summed = jax_steps.mean_over(world)
        steps = partial(jax_steps.jax_steps, ranks=world.size, rank=world.rank, summed=summed)
        jobs.serve(folder, world.rank, world.Barrier, steps)
    else:
        ranks = int(option)
        os.sched_setaffinity(0, cores[:ranks])
        from lib import jax_steps

        jobs.serve(
            folder,
            0,
            lambda: None,
            lambda case, per_rank: jax_steps.jax_steps(case, per_rank * ranks, 1, 0),
        )


SERVERS = {"nnmpi": serve_nnmpi, "torch": serve_torch, "jax": serve_jax}


def processes(subject: Subject, folder: Path) -> list[Process]:
    """The processes of a subject: one mpirun, PyTorch's, which connect to one port, or one."""
    command = [*jobs.program(__name__), subject.library, subject.option, str(folder)]
    memory = {} if subject.library == "nnmpi" or subject.option == "plain" else KEPT_MEMORY
    if subject.library == "nnmpi" or subject.option == WITH_MPI:
        found = jobs.mpirun(subject.ranks, command)
        return [Process(found.command, found.env | memory)]
    if subject.library == "jax":
        return [Process(command, jobs.ONE_THREAD | memory)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"WORLD_SIZE": str(subject.ranks), **jobs.ONE_THREAD, **memory}
    return [Process(command, {**env, "RANK": str(rank)}) for rank in range(subject.ranks)]


def subjects_of(ranks: int, algorithms: Sequence[str], installed: Container[str]) -> list[Subject]:
    """All subjects whose packages are installed; two that are compared run one after the other."""
    first, *others = algorithms
    found = [Subject("nnmpi apart", "nnmpi", NO_REDUCTION, ranks)]
    found += [Subject("nnmpi", "nnmpi", first, n) for n in (1, ranks)]
    if "torch" in installed:
        found += [Subject(BASELINE, "torch", "best", ranks), Subject("T+", "torch", "best", 1)]
    if "jax" in installed:
        found += [Subject("JAX", "jax", str(n), n) for n in (1, ranks)]
    if "mpi4jax" in installed:
        found.append(Subject("mpi4jax", "jax", WITH_MPI, ranks))
    found += [Subject(f"nnmpi {name}", "nnmpi", name, ranks) for name in others]
    if "torch" in installed:
        found.append(Subject("DDP T", "torch", "plain", ranks))
    return found


def main(library: str, option: str, folder: str) -> None:
    """Run on every rank of a job."""
    SERVERS[library](Path(folder), option)
