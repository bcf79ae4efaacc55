"""Sets MPI's options, then imports MPI, which reads them; all import it from here."""

import atexit
import os
import sys
from collections.abc import Callable

# Otherwise Open MPI's InfiniBand component prints an error for each window on hosts without
# InfiniBand.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")

# Over TCP, Open MPI hands messages up to the eager limit to the kernel at once, which sends them
# while the rank computes. Longer messages need a handshake, for which both ranks have to enter MPI.
# A rank that polled between two layers hid a quarter of the time of its sums with the default limit
# of 64 KB, and two thirds with this one.
os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_rndv_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_max_send_size", str(1 << 20))

# By default Open MPI puts longer messages directly into the receiver's memory. Two ranks that
# exchange such messages by polling then use one direction of their link after the other: a step
# whose gradients are summed by `doubling` took 1.5 to 1.7 times as long as with 1 (pieces).
os.environ.setdefault("OMPI_MCA_btl_tcp_flags", "1")

import mpi4py

ULFM = "OMPI_MCA_mpi_ft_enable"  # `mpirun --with-ft ulfm` sets it to 1 for all ranks
OUTLIVES_RANKS = os.environ.get(ULFM) == "1"

# If the user has imported mpi4py before, mpi4py ends MPI itself, after all functions of atexit
ENDED_BY_MPI4PY = "mpi4py.MPI" in sys.modules

mpi4py.rc.finalize = False  # mpi4py would end MPI in a forked process too, which crashes

from mpi4py import MPI as MPI  # noqa: E402 - its options are set above


def at_exit(act: Callable[[], object]) -> None:
    """Calls a function when this process ends, but not when a fork of it ends."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and act())


def finalize() -> None:
    if not MPI.Is_finalized():
        MPI.Finalize()


if not (OUTLIVES_RANKS or ENDED_BY_MPI4PY):  # a fault-tolerant MPI may wait for a killed rank
    at_exit(finalize)
