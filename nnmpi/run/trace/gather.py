"""The events of all ranks, on the first rank and on its clock."""

import numpy as np

from nnmpi.comm import Comm
from nnmpi.run.trace.recording import EVENT, Recording


def gather(comm: Comm, recording: Recording, offsets: np.ndarray) -> list[np.ndarray]:
    """The events of the steps that all ranks have recorded; other ranks get an empty list.

    Every rank calls it.
    """
    table = np.zeros((comm.size, 1), np.int64)
    table[comm.rank] = recording.limit
    comm.all_gather(table)
    own = recording.events(int(table.min())).copy()
    table[comm.rank] = len(own)
    comm.all_gather(table)
    if comm.rank:
        comm.isend(own.view(np.uint8), 0).wait()
        return []
    gathered = [own]
    for rank in range(1, comm.size):
        theirs = np.empty(int(table[rank, 0]), EVENT)
        comm.irecv(theirs.view(np.uint8), rank).wait()
        gathered.append(theirs)
    for events, offset in zip(gathered, offsets.tolist(), strict=True):
        events["began"] -= offset
        events["ended"] -= offset
    return gathered
