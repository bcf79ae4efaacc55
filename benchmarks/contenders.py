"""Who is timed in benchmarks/scaling.py, and what each of its processes does."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jobs
import workloads
from jobs import Process
from training import ONE_THREAD
from workloads import Reduction

RIVAL = "DDP T*"
APART = "apart"  # ranks that sum nothing: what the cores of a machine leave of each other


class Subject(NamedTuple):
    """Who is timed: a library, how it sums or what it is tuned for, and on how many ranks."""

    name: str
    library: str
    option: str
    ranks: int


def serve_nnmpi(folder: Path, option: str) -> None:
    """A rank of nnmpi."""
    from nnmpi import comm

    world = comm.world()
    how = Reduction(sums=False) if option == APART else Reduction(option)
    made = partial(workloads.nnmpi_steps, how=how)
    jobs.serve(folder, world.rank, world.barrier, made)


def serve_torch(folder: Path, option: str) -> None:
    """A process of PyTorch; alone it knows nothing of DDP."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    barrier: Callable[[], object] = lambda: None  # noqa: E731
    if ranks > 1:
        distributed.init_process_group("gloo")
        barrier = distributed.barrier
    made = partial(workloads.torch_steps, ranks=ranks, rank=rank, best=option == "best")
    jobs.serve(folder, rank, barrier, made)
    if ranks > 1:
        distributed.destroy_process_group()


SERVERS = {"nnmpi": serve_nnmpi, "torch": serve_torch}


def processes(subject: Subject, folder: Path) -> list[Process]:
    """What to start for a subject: one mpirun, or PyTorch's processes, which meet at a port."""
    command = [sys.executable, __file__, subject.library, subject.option, str(folder)]
    if subject.library == "nnmpi":
        return [jobs.mpirun(subject.ranks, command, ONE_THREAD)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    meet |= {"WORLD_SIZE": str(subject.ranks), **ONE_THREAD}
    return [Process(command, {**meet, "RANK": str(rank)}) for rank in range(subject.ranks)]


def subjects_of(ranks: int, algorithms: Sequence[str], has_torch: bool) -> list[Subject]:
    """All that are timed; two whose quotient counts stand side by side."""
    first, *others = algorithms
    found = [Subject("nnmpi apart", "nnmpi", APART, ranks)]
    found += [Subject("nnmpi", "nnmpi", first, n) for n in (1, ranks)]
    if has_torch:
        found += [Subject(RIVAL, "torch", "best", ranks), Subject("T*", "torch", "best", 1)]
    found += [Subject(f"nnmpi {name}", "nnmpi", name, ranks) for name in others]
    if has_torch:
        found.append(Subject("DDP T", "torch", "plain", ranks))
    return found


if __name__ == "__main__":
    SERVERS[sys.argv[1]](Path(sys.argv[3]), sys.argv[2])
