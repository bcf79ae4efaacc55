"""Laws of works that a progress thread moves, beside the rank's own thread."""

import numpy as np
from helpers.comm import laws_halves, laws_memory, laws_sums, laws_works
from helpers.comm.brought import part, total
from helpers.comm.random_calls import RandomCalls

from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import NAMES


def a_progress_thread_completes_works(comm: Comm) -> None:
    """The ranks neither poll nor wait: they compute until all works are complete."""
    p, n = comm.size, 700
    a = np.eye(60)
    with comm.progress_thread(pause=1e-4):
        for names in (NAMES, tuple(reversed(NAMES))):
            sums = [part(comm.rank, n, "float32") for _ in names]
            works = [comm.start(x, name) for x, name in zip(sums, names, strict=True)]
            while not all(work.done for work in works):
                a = a @ a
            for x in sums:
                np.testing.assert_array_equal(x, total(p, n, "float32"))
            comm.barrier()


def a_progress_thread_changes_no_results(comm: Comm) -> None:
    """Other laws hold with one progress thread, and with two."""
    with comm.progress_thread(pause=0):
        laws_works.works_complete_in_any_order(comm)
        assert RandomCalls(comm, 5).run(40) == []
        laws_halves.many_halves_under_way(comm)
        laws_sums.messages_and_bytes_by_peer(comm)
        with comm.progress_thread():
            assert RandomCalls(comm, 6).run(20) == []
        laws_memory.several_sums_of_shared_memory_under_way(comm)
        laws_memory.memory_of_a_node(comm)


def a_progress_thread_may_end_before_works_are_complete(comm: Comm) -> None:
    for _ in range(20):
        x, y = part(comm.rank, 5000, "float64"), part(comm.rank, 50, "int64")
        with comm.progress_thread():
            works = [comm.start(x, "ring"), comm.start(y, "tree")]
        comm.barrier()
        for work in works if comm.rank % 2 else works[::-1]:
            work.wait()
        np.testing.assert_array_equal(x, total(comm.size, 5000, "float64"))
        np.testing.assert_array_equal(y, total(comm.size, 50, "int64"))
