"""Finds out on which cores the ranks of a host run, and advises users if ranks or threads compete
for cores: `mpirun OPTIONS -n N nnmpi doctor --placement`.

The launcher binds ranks to cores, or a job or container does. Three mistakes make runs slow without
a message: several ranks on one core, more threads than cores, and a rank on cores of two NUMA
nodes, half of whose memory is then far from its cores.
"""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nnmpi.arrays import blas, cgroup
from nnmpi.comm import Comm
from nnmpi.options.amounts import plural
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.rank_names import ranks_text

Cpus = frozenset[int]


class RankCores(NamedTuple):
    """On which cores a rank runs, and what else is known about the cores of its host.

    bound     the cores on which the system may run it; empty if the system does not tell
    launcher  the cores on which the system may run the launcher
    machine   the number of cores of the host
    quota     the number of cores that control groups allow, in total
    nodes     the cores of each NUMA node of the host
    threads   the number of BLAS threads, if the user has set it; otherwise 1, since nnmpi sets it
    """

    bound: Cpus
    launcher: Cpus
    host: str
    machine: int
    quota: float = math.inf
    nodes: tuple[Cpus, ...] = ()
    threads: int = 1


def cores_here() -> RankCores:
    """Returns the RankCores of this rank: the cores on which it and its launcher may run, those of
    its host and of each NUMA node, the quota, and the BLAS threads."""
    return RankCores(
        Cpus(blas.affinity(0)),
        Cpus(blas.affinity(os.getppid())),
        platform.node(),
        os.cpu_count() or 1,
        cgroup.cpu_quota() or math.inf,
        numa_nodes(),
        blas.threads_of_user(),
    )


def tell(comm: Comm) -> int:
    """Prints on rank 0 on which cores the ranks of the job run, and advice on it; returns the exit
    status, which is 1 if there is advice. Every rank calls it."""
    ranks = gather_objects(comm, cores_here())
    lines = advice(ranks)
    if comm.rank == 0:
        for rank, of_rank in enumerate(ranks):
            print(f"rank {rank}  {of_rank.host}, {_named(of_rank.bound)}")
        print(*([f"-> {line}" for line in lines] or ["all is well"]), sep="\n", flush=True)
    return int(bool(lines))


def numa_nodes(root: Path = cgroup.ROOT) -> tuple[Cpus, ...]:
    """Returns the cores of each NUMA node of this host; empty if the system does not tell."""
    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return tuple(filter(None, (cgroup.cpu_list(file.read_text()) for file in files)))


def advice(ranks: Sequence[RankCores]) -> list[str]:
    """Returns advice for the user, one line for each of three mistakes that some host makes (ranks
    share cores, too many threads, cores of two NUMA nodes); each is about the first such host."""
    hosts: dict[str, dict[int, RankCores]] = {}
    for rank, of_rank in enumerate(ranks):
        hosts.setdefault(of_rank.host, {})[rank] = of_rank
    known = [host for host in hosts.values() if all(of_rank.bound for of_rank in host.values())]
    lines = (next(filter(None, map(line, known)), "") for line in (_crowded, _threads, _crossing))
    return [*filter(None, lines)]


def _crowded(host: Mapping[int, RankCores]) -> str:
    """Returns a line of advice if several ranks of a host share too few cores; otherwise ""."""
    first, sets = next(iter(host.values())), {of_rank.bound for of_rank in host.values()}
    may_use = len(first.launcher)
    for cores in sorted({*sets, _all(host)}, key=lambda cores: (len(cores), min(cores))):
        n = sum(of_rank.bound <= cores for of_rank in host.values())
        share = f"{plural(n, 'rank')} share {_named(cores)} of {first.host}"
        if n > len(cores) < may_use:
            flags = "--bind-to core --map-by core" if len(host) <= may_use else "--bind-to none"
            return f"{share}, and mpirun may use {may_use}: start them with mpirun {flags}"
        if n > len(cores) == 1 < first.machine:
            return (
                f"{share}, and mpirun may use no other of {first.machine}: allow it more (taskset, "
                "the cpuset of a container, srun --cpus-per-task)"
            )
    return ""


def _threads(host: Mapping[int, RankCores]) -> str:
    """Returns advice if the ranks of a host have more BLAS threads than cores; otherwise ""."""
    first, cores = next(iter(host.values())), len(_all(host))
    most = max(of_rank.threads for of_rank in host.values())
    threads = sum(of_rank.threads for of_rank in host.values())
    room = int(max(1, min(cores, first.quota)))
    if most == 1 or threads <= room:
        return ""
    more = f", or mpirun --map-by slot:PE={most}" * (cores < threads <= len(first.launcher))
    return (
        f"{plural(len(host), 'rank')} with {plural(threads, 'thread')} of BLAS in all on "
        f"{plural(room, 'core')} of {first.host}: set OMP_NUM_THREADS={max(1, room // len(host))}"
        f"{more}"
    )


def _crossing(host: Mapping[int, RankCores]) -> str:
    """Returns a line of advice if ranks of a host are bound to cores of several NUMA nodes,
    although each rank could have cores of one node; otherwise ""."""
    nodes = next(iter(host.values())).nodes
    largest = max(map(len, nodes), default=0)
    crossing = {
        rank: bound
        for rank, (bound, launcher, *_) in host.items()
        if bound < launcher and (len(bound) <= largest or len(host) >= len(nodes))
        if sum(bool(node & bound) for node in nodes) > 1
    }
    if not crossing:
        return ""
    rank, cores = next(iter(crossing.items()))
    return (
        f"{plural(len(crossing), 'rank')} bound across NUMA nodes of {host[rank].host} (rank "
        f"{rank} to {_named(cores)}), and memory of another node is slower: start them with mpirun "
        "--map-by numa --bind-to numa"
    )


def _all(host: Mapping[int, RankCores]) -> Cpus:
    return Cpus().union(*(of_rank.bound for of_rank in host.values()))


def _named(cores: Cpus) -> str:
    if not cores:
        return "cores that the system does not tell"
    return f"{'core' if len(cores) == 1 else 'cores'} {ranks_text(tuple(sorted(cores)))}"
