"""Chooses the all-reduce that sums gradients over replicas: the rules of `--allreduce auto`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from nnmpi.arrays import dtypes
from nnmpi.comm.allreduce.dispatch import for_size, power_of_two
from nnmpi.comm.allreduce.node_memory import USABLE, memory_of_sums
from nnmpi.options.config import Config
from nnmpi.options.features import WHOLE_MATRICES
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS, Cluster
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.layout import server_count
from nnmpi.parallel.mesh import REPLICAS, Mesh
from nnmpi.parallel.refusals import relies_on

BY_NODES = ("shared", "hierarchical", "mpi")
"""The all-reduces whose order of additions depends on which ranks share a node."""


def algorithm(
    config: Config,
    cluster: Cluster,
    mesh: Mesh,
    tied: Mapping[str, tuple[int, ...]],
    lengths: Mapping[tuple[int, int], int],
) -> str:
    """Returns the name of the all-reduce that sums gradients, as --allreduce asks for; raises
    ValueError if it is impossible here.

    lengths   a dict: coordinates (pp, tp) -> the number of elements of the flat gradient buffer
    tied      a dict: path of a parameter that several stages use -> the ranks along pp that have it

    `auto` follows a rule, so that the same layout gives the same bits:

        a parameter is in several stages                      ring
        all ranks find a library that suits their GPUs        that one, such as nccl
        ZeRO 2 or 3, or ZeRO where ranks may be lost          ring
        gradients are compressed for messages                 ring
        ranks compute on GPUs, which share no memory          ring
        all ranks along dp on one node, with enough memory    shared
        ZeRO 1, or tp over nodes that differ                  ring
        some nodes have several ranks, with enough memory     hierarchical
        tp                                                    ring
        else                                                  doubling or halving, by size

    All groups of ranks along dp use the same all-reduce: if several groups sum copies of one
    parameter, the copies must get the same bits.
    """
    _refuse(config, cluster, mesh, tied)
    if config.allreduce not in ("auto", "shared"):
        return config.allreduce
    if config.allreduce == "auto" and not tied and (of_library := _library(config, cluster, mesh)):
        return of_library
    kind = asked_kind(config)
    by_messages = (kind.scatters or kind.packs) and config.allreduce == "auto"
    if tied or cluster.has_devices or by_messages or (config.zero and cluster.survives):
        return "ring"
    groups = mesh.groups(*REPLICAS)
    longest = {at: power_of_two(n) for at, n in lengths.items()}
    nbytes = max(lengths.values()) * dtypes.on_paper(config.dtype).itemsize
    if config.allreduce == "shared" or all(cluster.on_one_node(group) for group in groups):
        # buffers for copies have power-of-two lengths; a window of the gradients is exact
        needed = lengths if shares_values(config, cluster) else longest
        lack = "" if mesh.count(*REPLICAS) == 1 else _lack(config, cluster, mesh, needed)
        if not lack:
            return "shared"
        if config.allreduce == "shared":
            raise ValueError(f"allreduce shared: {lack}")
        return "ring" if config.zero or config.tp > 1 else for_size(nbytes)
    if config.zero or is_cut_unlike(cluster, mesh):
        return "ring"
    crowded = any(max(cluster.counts(group).values()) > 1 for group in groups)
    if crowded and not _lack(config, cluster, mesh, longest):
        return "hierarchical"
    return "ring" if config.tp > 1 else for_size(nbytes)


def _refuse(
    config: Config, cluster: Cluster, mesh: Mesh, tied: Mapping[str, tuple[int, ...]]
) -> None:
    of_library = LIBRARY_SUMS.row(config.allreduce)
    for path, ranks in tied.items():
        where = f"{path} is in stages on ranks {', '.join(map(str, ranks))} along pp"
        if config.allreduce == "shared" or of_library:
            raise ValueError(
                f"allreduce {config.allreduce} sums over the ranks of one stage, but {where}; use "
                "--allreduce ring"
            )
    if of_library:
        of_library.refuse(cluster)
    if config.allreduce in BY_NODES and is_cut_unlike(cluster, mesh):
        raise ValueError(
            f"allreduce {config.allreduce} adds up node by node, but nodes divide the ranks along "
            f"dp in one way for some of the {config.tp} ranks along tp and in another for others, "
            "so copies of a parameter would differ: use --allreduce ring, or a multiple of "
            f"{config.tp} ranks on each node"
        )


def _library(config: Config, cluster: Cluster, mesh: Mesh) -> str | None:
    """Returns the name of a GPU library's all-reduce that suits ranks in step, or None."""
    sums = mesh.count(*REPLICAS) > 1 or mesh.axes["tp"] > 1
    together = server_count(config) == 0  # what else does not sum together has no GPU, or no sums
    if not (cluster.libraries and sums and together) or asked_kind(config).packs:
        return None
    suits = (name for name in cluster.libraries if LIBRARY_SUMS.needed(name).suits(cluster))
    return next(suits, None)


def is_cut_unlike(cluster: Cluster, mesh: Mesh) -> bool:
    """Returns True if the ranks along dp are distributed over nodes differently for different ranks
    along tp, so that copies of a parameter would be summed in different orders, to different bits.

    Groups of two ranks are never affected: both orders of two terms give the same sum.
    """
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


def shares_values(config: Config, cluster: Cluster) -> bool:
    """Returns True if ranks that sum gradients in shared memory also keep their parameters there.

    False if ranks continue after one is lost, since it may leave the memory half updated; and for
    an optimizer that needs whole matrices.
    """
    return not cluster.survives and not relies_on(WHOLE_MATRICES, config, 0)


def alike_on_nodes(cluster: Cluster, mesh: Mesh, axes: Sequence[str]) -> bool:
    """Returns True if all ranks of each group along tp have the same place among as many ranks of
    their node, along `axes`. Else they would update parts of unequal length."""

    def place(rank: int) -> tuple[int, int]:
        near = cluster.on_node(cluster.nodes[rank], mesh.group(rank, *axes))
        return near.index(rank), len(near)

    return all(len({*map(place, group)}) == 1 for group in mesh.groups("tp"))


def _lack(
    config: Config, cluster: Cluster, mesh: Mesh, lengths: Mapping[tuple[int, int], int]
) -> str:
    """Returns an error text if a node has too little shared memory for the sums, and perhaps
    values, of all groups of replicas on it; else "". `lengths` has that of the flat buffer by (pp,
    tp)."""
    dtype = dtypes.on_paper(config.dtype)

    @cache
    def memory(n: int, ranks: int) -> int:
        """Returns the bytes of shared memory with which `ranks` ranks of a node sum n elements."""
        values = n * dtype.itemsize if shares_values(config, cluster) else 0
        return memory_of_sums(n, dtype, ranks) + values

    needed: Counter[int] = Counter()
    for group in mesh.groups(*REPLICAS):
        at = mesh.coordinates(group[0])
        for node, ranks in cluster.counts(group).items():
            needed[node] += memory(lengths[at["pp"], at["tp"]], ranks)
    if max(needed.values()) <= USABLE * min(cluster.free_memory):
        return ""
    for node, nbytes in needed.items():
        ranks_here = cluster.near(cluster.nodes.index(node), range(cluster.size))
        free = min(cluster.free_memory[r] for r in ranks_here)
        if nbytes > USABLE * free:
            return (
                f"a sum in shared memory needs {nbytes:,} bytes, but only {free:,} are free in "
                "/dev/shm: use another --allreduce, or enlarge it (docker run --shm-size)"
            )
    return ""


def progress(config: Config, cluster: Cluster, mesh: Mesh) -> tuple[str, ...]:
    """Returns how each rank moves messages in backward passes: "poll" (between layers) or "thread".

    A thread needs the GIL and a core: without a spare core, steps took longer with it than without
    any overlap. So `auto` asks for two, one for the thread and one for the operating system.
    """
    if config.progress == "thread" and not cluster.any_thread:
        raise ValueError(
            "progress thread: MPI was started without MPI_THREAD_MULTIPLE, so no other thread may "
            "call it; use --progress poll"
        )
    if config.progress != "auto":
        return (config.progress,) * mesh.size
    if not cluster.any_thread:
        return ("poll",) * mesh.size

    def of(rank: int) -> str:
        is_near = cluster.on_one_node(mesh.group(rank, *REPLICAS))
        return "poll" if cluster.spare_cores[rank] < 2 or is_near else "thread"

    return tuple(map(of, range(mesh.size)))
