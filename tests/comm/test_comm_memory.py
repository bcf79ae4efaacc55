"""Memory that ranks share, where there are several nodes, and what is refused."""

import numpy as np
import pytest
from helpers.comm import laws_memory
from helpers.comm.counted import CountedTransports

from nnmpi.comm import Comm, MismatchError, NoRoomError, comm_self, thread_ranks
from nnmpi.comm.transport.threads import ThreadTransport


@pytest.mark.parametrize(("p", "per_node"), [(4, 2), (5, 2), (6, 3), (3, 1), (7, 4)])
def test_memory_on_several_nodes(p: int, per_node: int) -> None:
    def law(comm: Comm) -> None:
        first = comm.rank // per_node * per_node
        assert comm.node() == tuple(range(first, min(first + per_node, p)))
        laws_memory.several_sums_of_shared_memory_under_way(comm)
        laws_memory.ranks_of_a_node_divide_a_sum(comm)
        laws_memory.memory_of_a_node(comm)
        back = comm.split(0, -comm.rank)
        assert back is not None
        assert back.node() == tuple(sorted(p - 1 - r for r in comm.node()))

    thread_ranks.run(p, law, per_node=per_node)


def test_all_ranks_name_the_node_that_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(transport: ThreadTransport) -> int:
        return 50 if transport.family.job_rank >= 2 else 10**9

    monkeypatch.setattr(ThreadTransport, "free_memory", free)

    def law(comm: Comm) -> None:
        words = "takes 80 bytes, and 50 are free in /dev/shm on the node of rank 2"
        with pytest.raises(NoRoomError, match=words):
            comm.node_memory(10, "float64")

    thread_ranks.run(4, law, per_node=2)


@pytest.mark.parametrize("per_node", [None, 2])
def test_a_comm_gives_back_all_that_it_took(
    per_node: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPI has a limited number of communicators: each one that a Comm makes is freed with it."""
    counted = CountedTransports(monkeypatch)

    def law(comm: Comm) -> None:
        part = comm.split(0)
        assert part is not None
        for name in ("mpi", "ring", "shared", "hierarchical"):
            part.all_reduce(np.ones(3), name)
        part.start(np.ones(3), "ring").wait()
        part.agree(None)
        for memory in (part.shared(4, "float64"), part.node_memory(4, "float64")):
            memory.free()
        part.free()
        comm.free()

    thread_ranks.run(4, law, per_node=per_node)
    assert counted.kinds == {"duplicate", "split"}
    assert not counted.left


def test_sums_of_parts_on_several_nodes_leave_the_rest_alone() -> None:
    def law(comm: Comm) -> None:
        buffer = comm.shared(40, "float16")
        buffer.mine[:] = comm.rank
        buffer.total[buffer.own()] = 99
        comm.barrier()
        buffer.all_reduce(10, 30)
        assert buffer.total.tolist() == [99] * 10 + [10] * 20 + [99] * 10

    thread_ranks.run(5, law, per_node=2)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (4, 3), (11, None)])
def test_elements_out_of_range_are_refused(start: int, stop: int | None) -> None:
    buffer = comm_self().shared(10, "float32")
    for call in (buffer.all_reduce, buffer.start, buffer.own):
        with pytest.raises(ValueError, match=r"of 10: use 0 <= start <= stop <= 10"):
            call(start, stop)
    with pytest.raises(TypeError):
        buffer.own(0.5)  # type: ignore[arg-type]


def test_different_calls_on_node_memory_are_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")

    def law(comm: Comm) -> None:
        memory = comm.node_memory(3, "float32")
        memory.barrier()
        (memory.free if comm.rank else memory.barrier)()

    with pytest.raises(
        MismatchError, match=r"rank 0 calls node_memory\.barrier .* rank 1 calls node_memory\.free"
    ):
        thread_ranks.run(2, law)
