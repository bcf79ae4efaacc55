"""The transports of a fault-tolerant MPI job, all on one MPI communicator, which is replaced by a
smaller one ("shrunk") when ranks are lost.

If a rank dies while MPI creates a communicator, survivors may be killed: a half-made communicator
cannot be revoked. Only MPI_Comm_shrink is safe, since it leaves out ranks that die meanwhile. So
all communicators are made by shrinking, also at the start of the job. The survivors always shrink
MPI_COMM_WORLD, which no rank revokes. Transports are ranges of tags:

tags    0 ..              SPAN ..           2 SPAN ..
        first transport   second            third ...
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from nnmpi.comm.transport.base import PENDING, TAGS, Transport, TransportFamily
from nnmpi.comm.transport.start_mpi import MPI

MARKS = 1024  # of the calls of a transport
BARRIER = TAGS + MARKS * PENDING  # the tags of a transport after those of its messages
GATHER = BARRIER + 1
SPAN = GATHER + 1  # tags of a transport; Open MPI has room for 508 transports
FEWEST = 1000  # requests in the list before complete ones are removed
LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
"""The MPI error classes of a lost rank."""


class UlfmFamily(TransportFamily):
    """The transports that one rank makes on one MPI communicator. When ranks are lost, the
    survivors make a smaller communicator, and a new family on it.

    Each transport has a number that none of its ranks has used before, and that determines its
    range of tags. So two transports with the same number have no rank in common. Numbers grow;
    ranges of tags are reused when their transports are freed.
    """

    def __init__(
        self,
        first: Callable[["UlfmFamily"], Transport],
        comm: MPI.Intracomm,
        gone: Sequence[int] = (),
    ) -> None:
        self._first = first  # makes the first transport of a family
        self.comm = comm  # the ranks that were left when this family began
        self.gone = gone
        self.unused_tag = comm.Get_attr(MPI.TAG_UB) or 0
        self._contexts = self.unused_tag // SPAN
        self._taken, self._next = set[int](), 0
        self._met = False
        self._posted: list[MPI.Request] = []
        self._most = FEWEST

    def abandon(self) -> None:
        if not self.abandoned:
            self.abandoned = True
            self.comm.Revoke()

    def leave(self) -> None:
        """Makes operations on all transports raise RankLost, as `abandon` does, but revokes
        nothing: it is for the family before the start, on MPI_COMM_WORLD, which no rank revokes."""
        self.abandoned = self._met = True

    def new_number(self, least: int) -> int:
        """Returns the first transport number from `least` on that is unused, and whose tags are
        free."""
        if len(self._taken) == self._contexts:
            raise RuntimeError(f"{self._contexts:,} Comms are not freed yet: free some")
        number = max(least, self._next)
        while number % self._contexts in self._taken:
            number += 1
        return number

    def reserve(self, number: int) -> int:
        """Takes the range of tags of transport `number`, and returns the first one."""
        context = number % self._contexts
        self._taken.add(context)
        return context * SPAN

    def skip(self, number: int) -> None:
        """Records that other ranks may have used the numbers up to `number`."""
        self._next = number + 1

    def give_back(self, first_tag: int) -> None:
        """Frees the range of message tags that begins at `first_tag`."""
        self._taken.remove(first_tag // SPAN)

    def keep(self, request: MPI.Request) -> MPI.Request:
        """Stores a request, and so its buffer, until it is complete, since MPI may write to the
        buffer even if the operation was abandoned; returns the request."""
        self._posted.append(request)
        if len(self._posted) > self._most:
            self._posted = [*filter(None, self._posted)]  # a complete request is false
            self._most = max(FEWEST, 2 * len(self._posted))
        return request

    def confirm(self) -> None:
        if not self._meet(confirms=True):
            raise self.lost("lost a rank")

    def _meet(self, confirms: bool) -> bool:
        """Agrees with all ranks whether they go on with this communicator: True on all if all call
        `confirm` and none is lost, otherwise False, and from then on. Ranks in `shrink` call it too
        (`confirms` is False), since ranks in `confirm` wait for them."""
        if not self._met:
            try:
                # the agreement is a bitwise AND: a single rank that shrinks makes it 0 on all
                self._met = not self.comm.Agree(int(confirms))
            except MPI.Exception:  # raised on all ranks if one is lost
                self._met = True
        return not self._met

    def shrink(self) -> Transport:
        """Shrinks MPI_COMM_WORLD and returns the first transport of the surviving ranks.

        All ranks shrink the whole job each time, so that they all use the same communicator. They
        agree that all have it before any rank uses it, since it may be revoked from then on.
        """
        self._meet(confirms=False)
        job, left = MPI.COMM_WORLD, None
        with suppress(MPI.Exception):  # the agreement below tells the others
            left = MPI.Intracomm(job.Shrink())
        job.Ack_failed()  # MPI_Comm_agree fails while losses are not acknowledged
        with self.noticing():
            agreed = job.Agree(int(left is not None))
        if left is None or not agreed:
            raise self.lost("lost a rank")
        alive = left.Get_group().Translate_ranks(range(left.Get_size()), job.Get_group())
        gone = sorted({*range(job.Get_size())} - {*alive})
        return self._first(UlfmFamily(self._first, left, gone))

    def communicator(self) -> MPI.Intracomm:
        """Returns another communicator of the same ranks, which no rank revokes. All ranks call it
        right after they have made the family, by `shrink`, and then call `confirm`."""
        with self.noticing():
            made = MPI.Intracomm(self.comm.Shrink())
        if made.Get_size() < self.comm.Get_size():
            raise self.lost("lost a rank")
        return made

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Returns a context that turns MPI errors of a lost rank into RankLost."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_loss(error)

    def raise_loss(self, error: MPI.Exception) -> NoReturn:
        """Raises RankLost if a rank is lost; otherwise raises `error`."""
        gone = sorted(failed_ranks(MPI.COMM_WORLD) - {*self.gone})
        if not gone and error.Get_error_class() not in LOSSES:
            raise error
        who = f"rank {', '.join(map(str, gone))}" if gone else "a rank"
        raise self.lost(f"lost {who}") from error


def failed_ranks(comm: MPI.Intracomm) -> set[int]:
    """Returns the members of a communicator that are known to be lost, as ranks of the job."""
    failed = comm.Get_failed()
    ranks = failed.Translate_ranks(range(failed.Get_size()), MPI.COMM_WORLD.Get_group())
    failed.Free()
    return {*ranks}
