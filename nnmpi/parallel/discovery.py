"""discover: what ranks have to ask each other before it is decided what each of them does."""

from nnmpi.blas import cores, threads
from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.cluster import Cluster


def discover(comm: Comm) -> Cluster:
    """The cluster of a Comm; every rank calls it."""
    node = comm.node()
    spare = cores(len(node)) - threads()
    own = node[0], comm.free_memory(), spare, comm.any_thread
    nodes, free, cores_left, any_thread = zip(*gather_objects(comm, own), strict=True)
    return Cluster(nodes, free, cores_left, all(any_thread))
