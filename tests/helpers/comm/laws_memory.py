"""Laws of memory that ranks share: sums of parts of it, memory of a node, ranks of a node."""

from collections.abc import Callable

import numpy as np
from helpers.comm.brought import Array, gathered, part, total

from nnmpi.comm import Comm
from nnmpi.comm.progress import Work
from nnmpi.comm.shared_memory import SharedBuffer

DTYPES = ("float32", "float16", "int64")


def ranges(n: int) -> list[tuple[int, int | None]]:
    """Disjoint ranges that cover n elements, in the order in which they are summed."""
    return [(n - 7, None), (5, n - 7), (5, 5), (0, 5)]


def parts_of_shared_memory(comm: Comm) -> None:
    """Ranges are summed one by one; the other elements keep their values."""
    p, n = comm.size, 3 * comm.size + 20
    for dtype in DTYPES:
        buffer, want = comm.shared(n, dtype), total(p, n, dtype)
        buffer.mine[:] = part(comm.rank, n, dtype)
        comm.barrier()
        if comm.rank == 0:
            buffer.total[:] = 99
        comm.barrier()
        seen = np.full(n, 99, dtype)
        for start, stop in ranges(n):
            buffer.all_reduce(start, stop)
            seen[start:stop] = want[start:stop]
            np.testing.assert_array_equal(buffer.total, seen, f"{dtype} {start} {stop}")
            comm.barrier()
        np.testing.assert_array_equal(buffer.mine, part(comm.rank, n, dtype))
        buffer.all_reduce()
        np.testing.assert_array_equal(buffer.total, want)
        buffer.free()


def several_sums_of_shared_memory_under_way(comm: Comm) -> None:
    """Three buffers and other sums at once; each rank waits in an order of its own, or polls."""
    p, n = comm.size, 5 * comm.size + 30
    rng = np.random.default_rng(comm.rank)
    buffers = [comm.shared(n, dtype) for dtype in DTYPES]
    for turn in range(4):
        works: list[tuple[Work, Callable[[], None]]] = []
        for buffer in buffers:
            buffer.mine[:] = part(comm.rank + turn, n, buffer.mine.dtype)
        for start, stop in ranges(n):
            for buffer in buffers:
                wants = expected(buffer, p, turn)
                works.append((buffer.start(start, stop), holds(buffer, wants, start, stop)))
            x = part(comm.rank, n, "float32")
            comm.start(x, "shared").wait() if turn == 1 else comm.all_reduce(x, "ring")
            np.testing.assert_array_equal(x, total(p, n, "float32"))
        for i in rng.permutation(len(works)):
            work, check = works[i]
            while turn == 2 and not work.poll():
                pass
            work.wait()
            check()
        comm.barrier()  # other ranks may still read the last sums
    for buffer in buffers:
        buffer.free()


def expected(buffer: SharedBuffer, p: int, turn: int) -> Array:
    n, dtype = buffer.mine.size, buffer.mine.dtype
    return np.add.reduce([part(r + turn, n, dtype) for r in range(p)], dtype=dtype)


def holds(buffer: SharedBuffer, want: Array, start: int, stop: int | None) -> Callable[[], None]:
    return lambda: np.testing.assert_array_equal(buffer.total[start:stop], want[start:stop])


def ranks_of_a_node_divide_a_sum(comm: Comm) -> None:
    """Each element is added up by one rank of each node, in the order of the ranks."""
    n = 4 * comm.size + 3
    buffer, node = comm.shared(n, "float32"), comm.node()
    for start, stop in [(0, None), (0, 2), (3, n - 2), (4, 4)]:
        own = buffer.own(start, stop)
        rows = gathered(comm, np.array([own.start, own.stop])).view(np.int64)[list(node)]
        assert rows[0, 0] == start
        assert rows[-1, 1] == (n if stop is None else stop)
        assert (rows[1:, 0] == rows[:-1, 1]).all()
        assert np.ptp(rows[:, 1] - rows[:, 0]) <= 1
    buffer.free()


def memory_of_a_node(comm: Comm) -> None:
    """Every rank writes its elements and then reads all, with a sum under way on some ranks."""
    node = comm.node()
    assert node == tuple(sorted(set(node)))
    assert comm.rank in node
    mine = node.index(comm.rank)
    for dtype in ("float64", "int8"):
        memory, other = comm.node_memory(3 * len(node), dtype), comm.node_memory(0, dtype)
        assert memory.array.shape == (3 * len(node),)
        assert memory.array.dtype == dtype
        assert other.array.size == 0
        assert not memory.array.any()
        memory.barrier()  # all ranks have read the zeros
        for turn in range(1, 5):
            x = part(comm.rank, 900, "float32")
            work = comm.start(x, "tree")
            if comm.rank % 2:
                work.wait()
            memory.array[3 * mine : 3 * mine + 3] = turn * 10 + mine
            memory.barrier()
            want = np.repeat(turn * 10 + np.arange(len(node)), 3)
            np.testing.assert_array_equal(memory.array, want)
            other.barrier() if turn % 2 else memory.barrier()
            work.wait()
            np.testing.assert_array_equal(x, total(comm.size, 900, "float32"))
        other.free()
        memory.free()
