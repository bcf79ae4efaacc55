"""Communicators: ranks, messages between them, and collectives."""

from nnmpi.comm.arguments import Parts as Parts
from nnmpi.comm.communicator import Comm as Comm
from nnmpi.comm.debug.compare import MismatchError as MismatchError
from nnmpi.comm.debug.tracebacks import traceback_text as traceback_text
from nnmpi.comm.mpi_ranks import ended as ended
from nnmpi.comm.mpi_ranks import has_launcher as has_launcher
from nnmpi.comm.mpi_ranks import job as job
from nnmpi.comm.mpi_ranks import launched as launched
from nnmpi.comm.mpi_ranks import mpi_versions as mpi_versions
from nnmpi.comm.mpi_ranks import world as world
from nnmpi.comm.progress import Work as Work
from nnmpi.comm.thread_ranks import comm_self as comm_self
from nnmpi.comm.transport.base import AbortedError as AbortedError
from nnmpi.comm.transport.base import MessageLengthError as MessageLengthError
from nnmpi.comm.transport.base import NoRoomError as NoRoomError
from nnmpi.comm.transport.base import OtherRankError as OtherRankError
