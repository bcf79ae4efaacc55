"""MPI, whose options are read when it starts: every file that names it takes it from here."""

import atexit
import os
import sys
from collections.abc import Callable

# Without it Open MPI prints an error for each window, from its part for InfiniBand, where there is
# none.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")

# Over TCP, Open MPI hands messages up to a limit to the kernel at once, which sends them while the
# rank computes. Longer ones need a handshake, for which both ranks have to enter MPI: a rank that
# polls between two layers hid a quarter of the time of its sums with the usual limit of 64 KB, and
# two thirds with this one.
os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_rndv_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_max_send_size", str(1 << 20))

# It would write longer ones into the memory of the receiver. Two ranks that exchange such messages,
# and poll them, would then use one direction of their link after the other: a step whose gradients
# are summed by `doubling` took 1.5 to 1.7 times as long as with 1, which asks for pieces.
os.environ.setdefault("OMPI_MCA_btl_tcp_flags", "1")

import mpi4py

ULFM = "OMPI_MCA_mpi_ft_enable"  # `mpirun --with-ft ulfm` sets it to 1 for all ranks
OUTLIVES_RANKS = os.environ.get(ULFM) == "1"

# mpi4py ends MPI, if the user has imported it: behind all functions of atexit, which may need MPI
ENDED_BY_MPI4PY = "mpi4py.MPI" in sys.modules

mpi4py.rc.finalize = False  # it would end MPI in a forked process too, which crashes there

from mpi4py import MPI as MPI  # noqa: E402 - its options are set above


def at_exit(act: Callable[[], object]) -> None:
    """Call a function when this process ends, and not when a fork of it does."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and act())


def finalize() -> None:
    """End MPI, unless it has ended."""
    if not MPI.Is_finalized():
        MPI.Finalize()


if not (OUTLIVES_RANKS or ENDED_BY_MPI4PY):  # the first may wait for ever for a killed rank
    at_exit(finalize)
