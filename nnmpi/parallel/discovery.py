"""discover: what ranks have to ask each other before it is decided what each of them does."""

import numpy as np

from nnmpi.blas import cores, threads
from nnmpi.comm import Comm
from nnmpi.parallel.arrangement.cluster import Cluster


def discover(comm: Comm) -> Cluster:
    """The cluster of a Comm; every rank calls it."""
    node = comm.node()
    rows = np.zeros((comm.size, 4), np.int64)
    spare = cores(len(node)) - threads()
    rows[comm.rank] = node[0], comm.free_memory(), spare, comm.any_thread
    comm.all_gather(rows)
    nodes, free, cores_left, any_thread = (tuple(column) for column in rows.T.tolist())
    return Cluster(nodes, free, cores_left, all(any_thread))
