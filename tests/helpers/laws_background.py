"""Laws of works that a helper pushes forward beside the rank's own thread."""

import laws_memory
import laws_sums
import laws_works
import numpy as np
from brought import part, total

from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import NAMES


def a_helper_completes_works(comm: Comm) -> None:
    """Nobody polls or waits: the ranks compute until all is done."""
    p, n = comm.size, 700
    a = np.eye(60)
    with comm.background(pause=1e-4):
        for names in (NAMES, tuple(reversed(NAMES))):
            sums = [part(comm.rank, n, "float32") for _ in names]
            works = [comm.start(x, name) for x, name in zip(sums, names, strict=True)]
            while not all(work.done for work in works):
                a = a @ a
            for x in sums:
                np.testing.assert_array_equal(x, total(p, n, "float32"))
            assert comm._progress.idle
            comm.barrier()


def a_helper_gets_in_nobodys_way(comm: Comm) -> None:
    """What ranks do without one they do with one, or two."""
    with comm.background(pause=0):
        laws_works.works_complete_in_any_order(comm)
        laws_works.Storm(comm, 5).blow(60)
        laws_sums.messages_and_bytes_by_peer(comm)
        with comm.background():
            laws_works.two_communicators_at_once(comm)
        laws_memory.parts_of_shared_memory_under_way_together(comm)
        laws_memory.memory_of_a_node(comm)


def a_helper_may_leave_before_works_are_complete(comm: Comm) -> None:
    for _ in range(20):
        x, y = part(comm.rank, 5000, "float64"), part(comm.rank, 50, "int64")
        with comm.background():
            works = [comm.start(x, "ring"), comm.start(y, "tree")]
        comm.barrier()
        for work in works if comm.rank % 2 else works[::-1]:
            work.wait()
        np.testing.assert_array_equal(x, total(comm.size, 5000, "float64"))
        np.testing.assert_array_equal(y, total(comm.size, 50, "int64"))
