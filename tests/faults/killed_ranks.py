"""The training command, of which ranks are killed: RANK:SECONDS,... FOLDER, then its arguments.

A process of its own kills each of them from outside, as the OOM killer would, so many seconds after
MPI has started there, and leaves a file in the folder that says so.
"""

import os
import signal
import sys
import time
from pathlib import Path


def kill_later(seconds: float, mark: Path) -> int:
    """Returns in the rank, with a pipe: seconds count from when something is written to it."""
    rank = os.getpid()
    read, write = os.pipe()
    if os.fork():
        os.close(read)
        return write
    os.close(write)
    for stream in range(3):  # mpirun waits until nobody has them
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    os.read(read, 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.02, max(0.0, end - time.monotonic())))
        if os.getppid() != rank:
            os._exit(0)
    mark.touch()
    os.kill(rank, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    kills = dict(one.split(":") for one in sys.argv[1].split(",") if one)
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    if rank in kills:
        clock = kill_later(float(kills[rank]), Path(sys.argv[2], f"killed-{rank}"))
    from nnmpi import train
    from nnmpi.comm import ended
    from nnmpi.comm.transport import start_mpi as start_mpi

    if rank in kills:
        os.write(clock, b"!")
    sys.exit(ended(train.command(sys.argv[3:])))
