"""How gradients are summed over replicas, the ranks along dp and cp: the rules of `auto`."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

import numpy as np

from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import USABLE, memory_of_sums
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import MEASURED
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.layout import server_count
from nnmpi.parallel.mesh import REPLICAS, Mesh

BY_NODES = ("shared", "hierarchical", "mpi")
"""All-reduces whose order of additions depends on which ranks share a node."""


def algorithm(
    config: Config,
    cluster: Cluster,
    mesh: Mesh,
    tied: Mapping[str, tuple[int, ...]],
    lengths: Mapping[tuple[int, int], int],
) -> str:
    """The all-reduce of gradients; `lengths` are those of flat buffers, by coordinates along pp and
    tp.

    `tied` are the parameters of several stages, by path, with their ranks along pp.

    `auto` follows a rule, so that the same layout gives the same bits:

        a parameter is in several stages                      ring
        every rank has a GPU of its own, and finds NCCL       nccl, unless ranks may be lost
        ZeRO 2 or 3, or ZeRO where ranks may be lost          ring
        ranks compute on GPUs, which share no memory          ring
        all ranks along dp on one node, with enough memory    shared
        ZeRO 1, or tp over nodes that differ                  ring
        some nodes have several ranks, with enough memory     hierarchical
        tp                                                    ring
        else                                                  MEASURED

    All groups of ranks along dp take the same one, since several groups may sum copies of one
    parameter, which must get the same bits.
    """
    _refuse(config, cluster, mesh, tied)
    if config.allreduce not in ("auto", "shared"):
        return config.allreduce
    if config.allreduce == "auto" and not tied and _suits_nccl(config, cluster, mesh):
        return "nccl"
    divides = asked_kind(config).scatters and config.allreduce == "auto"
    if tied or cluster.has_devices or divides or (config.zero and cluster.survives):
        return "ring"
    groups = mesh.groups(*REPLICAS)
    longest = {at: power_of_two(n) for at, n in lengths.items()}
    if config.allreduce == "shared" or all(cluster.on_one_node(group) for group in groups):
        needed = longest if cluster.survives else lengths
        lack = "" if mesh.count(*REPLICAS) == 1 else _lack(config, cluster, mesh, needed)
        if not lack:
            return "shared"
        if config.allreduce == "shared":
            raise ValueError(f"allreduce shared: {lack}")
        return "ring" if config.zero or config.tp > 1 else MEASURED
    if config.zero or is_cut_unlike(cluster, mesh):
        return "ring"
    crowded = any(max(cluster.counts(group).values()) > 1 for group in groups)
    if crowded and not _lack(config, cluster, mesh, longest):
        return "hierarchical"
    return "ring" if config.tp > 1 else MEASURED


def _refuse(
    config: Config, cluster: Cluster, mesh: Mesh, tied: Mapping[str, tuple[int, ...]]
) -> None:
    for path, ranks in tied.items():
        where = f"{path} is in stages on ranks {', '.join(map(str, ranks))} along pp"
        if config.allreduce in ("shared", "nccl"):
            raise ValueError(
                f"allreduce {config.allreduce} sums over the ranks of one stage, and {where}; use "
                "--allreduce ring"
            )
    if config.allreduce == "nccl":
        _refuse_shared_gpus(cluster)
    if config.allreduce in BY_NODES and is_cut_unlike(cluster, mesh):
        raise ValueError(
            f"allreduce {config.allreduce} adds up node by node, and the nodes cut the ranks "
            f"along dp in one way for some of the {config.tp} ranks along tp and in another "
            "for others, so their copies would differ: use --allreduce ring, or a multiple of "
            f"{config.tp} ranks on each node"
        )


def _suits_nccl(config: Config, cluster: Cluster, mesh: Mesh) -> bool:
    """Whether ranks that step together sum, and NCCL can: no refusal names it."""
    sums = mesh.count(*REPLICAS) > 1 or mesh.axes["tp"] > 1
    together = not (server_count(config) or config.reproducible or config.schedule == "pipedream")
    can = cluster.has_nccl and not cluster.survives and cluster.shared_gpu is None
    return can and sums and together


def _refuse_shared_gpus(cluster: Cluster) -> None:
    """Raises ValueError where two ranks have one GPU."""
    if cluster.shared_gpu is not None:
        first, second = cluster.shared_gpu
        per_node = max(Counter(cluster.nodes).values())
        raise ValueError(
            f"allreduce nccl: ranks {first} and {second} share GPU {cluster.devices[first]} of a "
            f"node with {per_node} ranks, and NCCL needs a GPU for each rank: start as many ranks "
            "on a node as it has GPUs, or use --allreduce ring"
        )


def is_cut_unlike(cluster: Cluster, mesh: Mesh) -> bool:
    """Whether ranks along dp share nodes in one way for some ranks along tp, and in another for
    others; no matter for two ranks, of which either order gives the same sum."""
    if mesh.count(*REPLICAS) <= 2 or mesh.axes["tp"] == 1:
        return False

    def pattern(rank: int) -> tuple[int, ...]:
        nodes, first = (cluster.nodes[r] for r in mesh.group(rank, *REPLICAS)), dict[int, int]()
        return tuple(first.setdefault(node, i) for i, node in enumerate(nodes))

    return any(
        len({*map(pattern, group)}) > 1
        for group in mesh.groups("tp")
        if not any(mesh.coordinates(group[0])[axis] for axis in REPLICAS)
    )


def _lack(
    config: Config, cluster: Cluster, mesh: Mesh, lengths: Mapping[tuple[int, int], int]
) -> str:
    """An error if a node lacks memory for the parameters and sums of all groups along dp, or ""."""
    dtype = np.dtype(config.dtype)

    @cache
    def memory(n: int, ranks: int) -> int:
        """The bytes that a node with this many ranks of a group needs for n numbers."""
        values = 0 if cluster.survives else n * dtype.itemsize
        return memory_of_sums(n, dtype, ranks) + values

    needed: Counter[int] = Counter()
    for group in mesh.groups(*REPLICAS):
        at = mesh.coordinates(group[0])
        for node, ranks in cluster.counts(group).items():
            needed[node] += memory(lengths[at["pp"], at["tp"]], ranks)
    if max(needed.values()) <= USABLE * min(cluster.free_memory):
        return ""
    for node, nbytes in needed.items():
        here = cluster.near(cluster.nodes.index(node), range(cluster.size))
        free = min(cluster.free_memory[r] for r in here)
        if nbytes > USABLE * free:
            return (
                f"a sum through shared memory takes {nbytes:,} bytes, and {free:,} are free in "
                "/dev/shm here: take another algorithm, or enlarge it (docker run --shm-size)"
            )
    return ""


def progress(config: Config, cluster: Cluster, mesh: Mesh) -> tuple[str, ...]:
    """The ways to progress messages in backward passes, by rank: polls between layers, or a thread.

    A thread takes the interpreter's lock and a share of a core: without a core of its own, steps
    took longer with it than without any overlap. So it needs two cores besides those of BLAS, one
    for itself and one for the system's part of sending.
    """
    if config.progress == "thread" and not cluster.any_thread:
        raise ValueError(
            "progress thread: MPI was not started with THREAD_MULTIPLE, so that no other thread "
            "may use it; use --progress poll"
        )
    if config.progress != "auto":
        return (config.progress,) * mesh.size
    if not cluster.any_thread:
        return ("poll",) * mesh.size

    def of(rank: int) -> str:
        is_near = cluster.on_one_node(mesh.group(rank, *REPLICAS))
        return "poll" if cluster.spare_cores[rank] < 2 or is_near else "thread"

    return tuple(map(of, range(mesh.size)))
