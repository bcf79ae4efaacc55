"""A rank that starts: it times its phases, and rank 0 prints what all ranks measured."""

import json
import time

BEGIN = time.time(), time.process_time()


def main(begun: str) -> None:
    """Starts as a run does; `begun` is when mpirun was started."""
    marks = [(float(begun), 0.0), BEGIN]

    def mark() -> None:
        marks.append((time.time(), time.process_time()))

    import numpy as np

    from nnmpi import Config
    from nnmpi.arrays.backend import CPU
    from nnmpi.parallel.agreement import gather_objects
    from nnmpi.parallel.arrangement.cluster import discover
    from nnmpi.parallel.layout import Layout

    mark()
    from nnmpi.comm import world

    comm = world()
    mark()
    comm.all_reduce(np.ones(2 * comm.size, np.float32), "ring")  # a neighbour to each side
    comm.all_reduce(np.ones(2 * comm.size, np.float32), "doubling")  # log2 p others
    mark()
    Layout.of(Config(pp=2, tp=2 if comm.size >= 4 else 1), comm)
    mark()
    discover(comm, CPU)
    mark()
    gathered = gather_objects(comm, marks)
    if comm.rank == 0:
        print(json.dumps(gathered), flush=True)
    comm.barrier()
