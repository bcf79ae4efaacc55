"""Memory that ranks of a node share through a file without a name, here of one process."""

import os
from collections.abc import Sequence

import numpy as np
import pytest

from nnmpi.comm import Comm
from nnmpi.comm.thread_ranks import run
from nnmpi.comm.transport import files

RANKS = 4


@pytest.mark.skipif(not files.HAS_FILES, reason="this system has no files without a name")
def test_ranks_have_each_others_segments_and_one_open_file() -> None:
    def segments(comm: Comm) -> list[np.ndarray]:
        def gather(values: Sequence[int]) -> np.ndarray:
            rows = np.zeros((comm.size, len(values)), np.int64)
            rows[comm.rank] = values
            comm.all_reduce(rows)
            return rows

        made = files.map_segments(gather, comm.rank == 0, 64 + comm.rank, comm.barrier)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in made.buffers]
        arrays[comm.rank][:] = comm.rank
        return arrays

    before = len(os.listdir("/proc/self/fd"))
    found = run(RANKS, segments)
    for arrays in found:
        assert [a.size for a in arrays] == [64, 65, 66, 67]
        assert all((a == r).all() for r, a in enumerate(arrays))
    assert len(os.listdir("/proc/self/fd")) - before == RANKS  # one of each rank, not of each pair
