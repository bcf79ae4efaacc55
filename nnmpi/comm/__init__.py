"""Communicators: ranks, messages between them, and collectives.

Not here: which data is sent and why (`parallel`), the cost of collectives (`collectives`).

Rules for a change of `communicator.py`; a work is an operation of this rank in progress:

- All ranks of a Comm call its collectives in the same order. The caller ensures that: an argument
  (array, name) that is wrong on one rank raises on that rank only, so callers first agree on
  whatever may fail.
- A blocking MPI call that all ranks make (a split, an allocation of shared memory) goes into
  `CallRunner.collective`, whose barrier moves pending works; otherwise two ranks that wait for
  different operations deadlock.
- A rank blocks inside MPI only while it has no pending works. So a collective is made of messages,
  which match whether they block or not; MPI's own all-reduce needs an agreement first.
- Point-to-point messages have a transport of their own, so their tags never match those of
  collectives. The tag of a collective is its call number, which is the same on all ranks.
- Whatever depends on length and type only is computed once and cached in `_prepared`: a later call
  is a look-up, a log entry and the messages. Small sums are only as fast as that path.
- No code catches RankLost and continues on the same Comms: each later operation raises it again.
- The call log is what a report of a hang shows: a new collective logs its call before it waits.
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
from nnmpi.comm.transport.system import OperatingSystem as OperatingSystem
from nnmpi.comm.transport.system import System as System
