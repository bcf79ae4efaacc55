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


def ones(n: int = 4, dtype: str = "float32") -> Any:
    return np.ones(n, dtype)


def listed(n: int = 4) -> list[Any]:
    """An array for each rank."""
    return [ones(n) for _ in range(dist.get_world_size())]


def gather_into(n: int, dtype: str) -> None:
    gathered = ones(n * dist.get_world_size(), dtype)
    dist.all_gather_into_tensor(gathered, ones(n, dtype))


def exchange(dtype: str = "float32") -> None:
    n = dist.get_world_size()
    dist.all_to_all_single(ones(n, dtype), ones(n, dtype))


def scatter_sums(op: OP) -> None:
    dist.reduce_scatter_tensor(ones(1), ones(dist.get_world_size()), op)


def comm() -> Comm:
    return dist.group.WORLD.rows.comm


class Pair(NamedTuple):
    """What all ranks but rank 1 call, what rank 1 calls, and words for these in the message."""

    usual: Callable[[], object]
    other: Callable[[], object]
    words: tuple[str, str]


def of_sums(how: str) -> Pair:
    usual, other = (
        (lambda: comm().all_reduce(ones(), how)),
        (lambda: comm().all_reduce(ones(3), how)),
    )
    return Pair(
        usual, other, (f"all_reduce of 4 float32 by {how}", f"all_reduce of 3 float32 by {how}")
    )


PAIRS = {
    "lengths of sums": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.all_reduce(ones(5)),
        ("all_reduce of 4 float32", "all_reduce of 5 float32"),
    ),
    "types of sums": Pair(
        lambda: dist.all_reduce(ones(8)),
        lambda: dist.all_reduce(ones(4, "float64")),
        ("all_reduce of 8 float32", "all_reduce of 4 float64"),
    ),
    "sum, maximum": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.all_reduce(ones(), OP.MAX),
        ("all_reduce of 4 float32", "by ring, MAX"),
    ),
    "minimum, maximum": Pair(
        lambda: dist.all_reduce(ones(), OP.MIN),
        lambda: dist.all_reduce(ones(), OP.MAX),
        ("by ring, MIN", "by ring, MAX"),
    ),
    "sum, mean": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.all_reduce(ones(), OP.AVG),
        ("by doubling (", "by doubling, AVG ("),
    ),
    "sum, barrier": Pair(
        lambda: dist.all_reduce(ones(1)),
        dist.barrier,
        ("by doubling (", "by doubling, barrier ("),
    ),
    "sum, sum of one": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.reduce(ones(), 0),
        ("by doubling (", "by doubling, SUM to rank 0 ("),
    ),
    "sum, gathered": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.all_gather(listed(), ones()),
        ("all_reduce of 4 float32", "all_gather of "),
    ),
    "sum, broadcast": Pair(
        lambda: dist.all_reduce(ones()),
        lambda: dist.broadcast(ones(), 0),
        ("all_reduce of 4 float32", "broadcast of 4 float32 from rank 0"),
    ),
    "receivers of a sum": Pair(
        lambda: dist.reduce(ones(), 0),
        lambda: dist.reduce(ones(), 1),
        ("SUM to rank 0", "SUM to rank 1"),
    ),
    "senders": Pair(
        lambda: dist.broadcast(ones(), 0),
        lambda: dist.broadcast(ones(), 1),
        ("broadcast of 4 float32 from rank 0", "broadcast of 4 float32 from rank 1"),
    ),
    "lengths sent": Pair(
        lambda: dist.broadcast(ones(5), 0),
        lambda: dist.broadcast(ones(4), 0),
        ("broadcast of 5 float32", "broadcast of 4 float32"),
    ),
    "types gathered": Pair(
        lambda: gather_into(8, "float32"),
        lambda: gather_into(4, "float64"),
        ("float32 by ring", "float64 by ring"),
    ),
    "scattered, gathered": Pair(
        lambda: dist.scatter(ones(), listed(), 0),
        lambda: dist.gather(ones(), listed(), 0),
        ("scatter of 4 float32 root rank 0", "gather of 4 float32 root rank 0"),
    ),
    "scattered by": Pair(
        lambda: dist.scatter(ones(), listed(), 0),
        lambda: dist.scatter(ones(), listed(), 1),
        ("scatter of 4 float32 root rank 0", "scatter of 4 float32 root rank 1"),
    ),
    "lengths gathered": Pair(
        lambda: dist.gather(ones(), listed(), 0),
        lambda: dist.gather(ones(5), listed(5), 0),
        ("gather of 4 float32", "gather of 5 float32"),
    ),
    "all to all, gathered": Pair(
        exchange,
        lambda: dist.all_gather(listed(), ones()),
        ("all_to_all", "all_gather of "),
    ),
    "types all to all": Pair(
        exchange,
        lambda: exchange("int32"),
        ("all_to_all of 0 float32", "all_to_all of 0 int32"),
    ),
    "sums scattered": Pair(
        lambda: scatter_sums(OP.MIN),
        lambda: scatter_sums(OP.MAX),
        ("reduce_scatter, MIN of ", "reduce_scatter, MAX of "),
    ),
    "in shared memory": of_sums("shared"),
    "by the library": of_sums("mpi"),
}


def call(name: str, rank: int) -> None:
    """Makes one call of the pair, then one that all ranks make alike."""
    pair = PAIRS[name]
    (pair.other if rank == 1 else pair.usual)()
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group()
    dist.group.WORLD.rows.measures = False
    if sys.argv[1] == "in shared memory":  # both lengths share memory: the compiled sum has both
        for n in 3, 4:
            comm().all_reduce(ones(n), "shared")
    call(sys.argv[1], dist.get_rank())
