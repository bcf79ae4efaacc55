"""Communicators: ranks, messages between them, and collectives.

Here: `Comm` over MPI and over threads, transports, all-reduce by the algorithms of `collectives`,
memory shared by a node, and the search for hangs (`debug`).
Not here: what is sent and why (`parallel`), prices of collectives (`collectives`).

Rules of `communicator.py`:

- All ranks of a Comm call its collectives in one order. That is the caller's duty: what is checked
  here on one rank only (an array, a name) raises there only, so a caller agrees on what may fail.
- What MPI does in one blocking call (to split, to make shared memory) goes within
  `CallRunner.collective`, whose barrier moves the works under way; else two ranks that wait for
  different things deadlock.
- A rank blocks in MPI only where it has no works. So a collective is made of messages, which match
  whether they block or not; MPI's own all-reduce needs an agreement first.
- Messages have a transport of their own, so that no tag meets that of a collective. A collective's
  tag is the number of its call, which is the same on all ranks.
- What is found out once for a length and a type is kept in `_prepared`: a call after that is a
  look-up, a line in the log and the moves. Small sums are as fast as that is.
- Nobody catches RankLost to go on with the same Comms: each of their operations raises it again.
- The log is what a report of a hang shows: a new collective logs its call before it waits.
"""

from nnmpi.comm.arguments import Parts as Parts
from nnmpi.comm.communicator import Comm as Comm
from nnmpi.comm.debug.compare import MismatchError as MismatchError
from nnmpi.comm.debug.exit_hooks import traceback_text as traceback_text
from nnmpi.comm.mpi_ranks import ended as ended
from nnmpi.comm.mpi_ranks import has_launcher as has_launcher
from nnmpi.comm.mpi_ranks import job as job
from nnmpi.comm.mpi_ranks import launched as launched
from nnmpi.comm.mpi_ranks import mpi_versions as mpi_versions
from nnmpi.comm.mpi_ranks import world as world
from nnmpi.comm.progress import Work as Work
from nnmpi.comm.thread_ranks import comm_self as comm_self
from nnmpi.comm.thread_ranks import run as threads  # noqa: F401
from nnmpi.comm.transport.base import AbortedError as AbortedError
from nnmpi.comm.transport.base import MessageLengthError as MessageLengthError
from nnmpi.comm.transport.base import NoRoomError as NoRoomError
from nnmpi.comm.transport.base import OtherRankError as OtherRankError
from nnmpi.comm.transport.base import RankLost as RankLost
