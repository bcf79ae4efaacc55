"""The subjects of benchmarks/scaling.py, and the processes that run them."""

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lib import jobs, workloads
from lib.jobs import Process
from lib.workloads import Reduction

BASELINE = "DDP T*"
NO_REDUCTION = "apart"  # independent ranks: how far cores slow each other down


class Subject(NamedTuple):
    """What is timed: a library, its all-reduce algorithm or variant, and the number of ranks."""

    name: str
    library: str
    option: str
    ranks: int


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


SERVERS = {"nnmpi": serve_nnmpi, "torch": serve_torch}


def processes(subject: Subject, folder: Path) -> list[Process]:
    """The processes of a subject: one mpirun, or PyTorch's processes, which connect to one port."""
    command = [*jobs.program(__name__), subject.library, subject.option, str(folder)]
    if subject.library == "nnmpi":
        return [jobs.mpirun(subject.ranks, command)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"WORLD_SIZE": str(subject.ranks), **jobs.ONE_THREAD}
    return [Process(command, {**env, "RANK": str(rank)}) for rank in range(subject.ranks)]


def subjects_of(ranks: int, algorithms: Sequence[str], has_torch: bool) -> list[Subject]:
    """All subjects; two that are compared run one after the other."""
    first, *others = algorithms
    found = [Subject("nnmpi apart", "nnmpi", NO_REDUCTION, ranks)]
    found += [Subject("nnmpi", "nnmpi", first, n) for n in (1, ranks)]
    if has_torch:
        found += [Subject(BASELINE, "torch", "best", ranks), Subject("T*", "torch", "best", 1)]
    found += [Subject(f"nnmpi {name}", "nnmpi", name, ranks) for name in others]
    if has_torch:
        found.append(Subject("DDP T", "torch", "plain", ranks))
    return found


def main(library: str, option: str, folder: str) -> None:
    """Run on every rank of a job."""
    SERVERS[library](Path(folder), option)
