"""Starts a job that continues when ranks are lost."""

import os
from collections.abc import Callable
from contextlib import suppress

from nnmpi.addons.recovery.ulfm import channel
from nnmpi.addons.recovery.ulfm.family import UlfmFamily
from nnmpi.addons.recovery.ulfm.files import HAS_FILES
from nnmpi.addons.recovery.ulfm.silent_ranks import SilentRankMonitor as SilentRankMonitor
from nnmpi.addons.recovery.ulfm.transport import UlfmTransport
from nnmpi.comm.communicator import Comm
from nnmpi.comm.progress import Progress
from nnmpi.comm.transport.base import RankLost, Transport
from nnmpi.comm.transport.start_mpi import MPI, OUTLIVES_RANKS


def is_available() -> bool:
    """Returns True if the job was started with --with-ft ulfm, and the MPI library supports it."""
    if not OUTLIVES_RANKS or MPI.get_vendor()[0] != "Open MPI":
        return False
    try:
        return not MPI.COMM_SELF.Is_revoked()
    except MPI.Exception:  # the library was built without ULFM
        return False


def problem() -> str:
    """Returns the reason why a fault-tolerant job cannot run on this system; empty if it can."""
    if HAS_FILES:
        return ""
    return (
        "with --with-ft ulfm, ranks share memory through files in /dev/shm, which this system does "
        "not have: start the job without --with-ft ulfm"
    )


def connected(
    progress: Progress, agree: Callable[[Transport], None]
) -> tuple[Comm, channel.UlfmChannel]:
    """Connects the ranks of a fault-tolerant job that are alive: returns their Comm, and a channel
    for their watchdogs.

    `agree` is called with the new transport, for what ranks must agree on first. If a rank is lost
    meanwhile, the others connect again; if at the very end, the Comm is returned abandoned: the
    caller's next operation raises RankLost, as for a later loss, and the caller shrinks.
    """
    progress.family = before_start()
    while True:
        with suppress(RankLost):
            left = progress.shrink()
            assert isinstance(left, UlfmTransport)
            of_watchdogs = channel.UlfmChannel(left)
            agree(left)
            comm = Comm(left, progress=progress)
            left.family.confirm()  # not Comm.confirm: that would end the time limit of the start
            if comm.lost:
                comm.abandon()
            return comm, of_watchdogs


def before_start() -> UlfmFamily:
    """Returns the family of all ranks launched, whose `shrink` starts the job with those alive."""

    def first(family: UlfmFamily) -> UlfmTransport:
        family.skip(0)
        return UlfmTransport(family, range(family.comm.size), 0)

    family = UlfmFamily(first, MPI.COMM_WORLD)
    family.leave()
    return family


def remove_segments() -> None:
    """Removes the files of MPI's own shared memory, also those of lost ranks, which only the end of
    MPI would remove. Linux only."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].rstrip() for line in maps if "/sm_segment." in line}
        for path in paths:
            with suppress(OSError):  # another rank has removed the file
                os.unlink(path)
