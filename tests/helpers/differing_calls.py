"""Pairs of calls of `nnmpi.distributed` that differ between ranks; a pair is run as a job:

mpirun -n 2 python differing_calls.py NAME
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import nnmpi.distributed as dist
from nnmpi.comm import Comm

OP = dist.ReduceOp
Call = Callable[[], object]


def ones(n: int = 4, dtype: str = "float32") -> Any:
    return np.ones(n, dtype)


def listed(n: int = 4) -> list[Any]:
    """An array for each rank."""
    return [ones(n) for _ in range(dist.get_world_size())]


def reduced(n: int = 4, dtype: str = "float32", op: OP = OP.SUM) -> Call:
    return lambda: dist.all_reduce(ones(n, dtype), op)


def reduced_to(root: int) -> Call:
    return lambda: dist.reduce(ones(), root)


def sent_by(root: int, n: int = 4) -> Call:
    return lambda: dist.broadcast(ones(n), root)


def gathered() -> None:
    dist.all_gather(listed(), ones())


def gathered_into(n: int, dtype: str) -> Call:
    size = dist.get_world_size
    return lambda: dist.all_gather_into_tensor(ones(n * size(), dtype), ones(n, dtype))


def gathered_on_0(n: int = 4) -> Call:
    return lambda: dist.gather(ones(n), listed(n), 0)


def scattered_by(root: int) -> Call:
    return lambda: dist.scatter(ones(), listed(), root)


def exchanged(dtype: str = "float32") -> Call:
    size = dist.get_world_size
    return lambda: dist.all_to_all_single(ones(size(), dtype), ones(size(), dtype))


def sums_scattered(op: OP) -> Call:
    return lambda: dist.reduce_scatter_tensor(ones(1), ones(dist.get_world_size()), op)


def comm() -> Comm:
    return dist.group.WORLD.rows.comm


def reduced_by(how: str, n: int) -> Call:
    return lambda: comm().all_reduce(ones(n), how)


class Pair(NamedTuple):
    """What all ranks but rank 1 call, what rank 1 calls, and words for these in the message."""

    usual: Call
    other: Call
    words: tuple[str, str]


SUM, BY_0, SCATTERED = "all_reduce of 4 float32", "from rank 0", "scatter of 4 float32 root rank"
PAIRS = {
    "lengths of sums": Pair(reduced(), reduced(5), (SUM, "all_reduce of 5 float32")),
    "types of sums": Pair(
        reduced(8), reduced(4, "float64"), ("all_reduce of 8 float32", "all_reduce of 4 float64")
    ),
    "sum, maximum": Pair(reduced(), reduced(op=OP.MAX), (SUM, "by ring, MAX")),
    "minimum, maximum": Pair(
        reduced(op=OP.MIN), reduced(op=OP.MAX), ("by ring, MIN", "by ring, MAX")
    ),
    "sum, mean": Pair(reduced(), reduced(op=OP.AVG), ("by doubling (", "by doubling, AVG (")),
    "sum, barrier": Pair(reduced(1), dist.barrier, ("by doubling (", "by doubling, barrier (")),
    "sum, sum of one": Pair(
        reduced(), reduced_to(0), ("by doubling (", "by doubling, SUM to rank 0 (")
    ),
    "sum, gathered": Pair(reduced(), gathered, (SUM, "all_gather of ")),
    "sum, broadcast": Pair(reduced(), sent_by(0), (SUM, f"broadcast of 4 float32 {BY_0}")),
    "receivers of a sum": Pair(reduced_to(0), reduced_to(1), ("SUM to rank 0", "SUM to rank 1")),
    "senders": Pair(
        *(sent_by(0), sent_by(1)),
        (f"broadcast of 4 float32 {BY_0}", "broadcast of 4 float32 from rank 1"),
    ),
    "lengths sent": Pair(
        sent_by(0, 5), sent_by(0), ("broadcast of 5 float32", "broadcast of 4 float32")
    ),
    "types gathered": Pair(
        *(gathered_into(8, "float32"), gathered_into(4, "float64")),
        ("float32 by ring", "float64 by ring"),
    ),
    "scattered, gathered": Pair(
        scattered_by(0), gathered_on_0(), (f"{SCATTERED} 0", "gather of 4 float32 root rank 0")
    ),
    "scattered by": Pair(scattered_by(0), scattered_by(1), (f"{SCATTERED} 0", f"{SCATTERED} 1")),
    "lengths gathered": Pair(
        gathered_on_0(), gathered_on_0(5), ("gather of 4 float32", "gather of 5 float32")
    ),
    "all to all, gathered": Pair(exchanged(), gathered, ("all_to_all", "all_gather of ")),
    "types all to all": Pair(
        exchanged(), exchanged("int32"), ("all_to_all of 0 float32", "all_to_all of 0 int32")
    ),
    "sums scattered": Pair(
        *(sums_scattered(OP.MIN), sums_scattered(OP.MAX)),
        ("reduce_scatter, MIN of ", "reduce_scatter, MAX of "),
    ),
    **{
        name: Pair(
            *(reduced_by(how, 4), reduced_by(how, 3)),
            (f"{SUM} by {how}", f"all_reduce of 3 float32 by {how}"),
        )
        for name, how in (("in shared memory", "shared"), ("by the library", "mpi"))
    },
}


def call(name: str, rank: int) -> None:
    """Makes one call of the pair, then one that all ranks make alike."""
    pair = PAIRS[name]
    (pair.other if rank == 1 else pair.usual)()
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group()
    dist.group.WORLD.rows.may_wait = False
    if sys.argv[1] == "in shared memory":  # both lengths share memory: the compiled sum has both
        for n in 3, 4:
            comm().all_reduce(ones(n), "shared")
    call(sys.argv[1], dist.get_rank())
