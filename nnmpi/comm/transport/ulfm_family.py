"""The transports of one rank that outlive the loss of others: one communicator for all of them.

A death while MPI makes a communicator may end survivors: one that is half made cannot be revoked.
To shrink is the exception, which leaves out whoever dies meanwhile. So that is how all are made,
where the job starts too: the ranks that are left then shrink MPI_COMM_WORLD, which nobody revokes.

tags    0 ..              SPAN ..           2 SPAN ..
        first transport   second            third ...
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from nnmpi.comm.transport.base import TAGS, Transport, TransportFamily
from nnmpi.comm.transport.start_mpi import MPI

BARRIER, GATHER = TAGS, TAGS + 1  # tags of a context besides those of messages
SPAN = TAGS + 2  # of which Open MPI has 65,532 times as many
FEWEST = 1000  # requests that are kept before those that are complete are dropped
LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
"""The classes of errors by which MPI tells that a rank is gone."""


class UlfmFamily(TransportFamily):
    """The transports of one rank up to a loss, all of them over one communicator.

    Each has a number, which is new to all its ranks, and sets its tags apart. So two with one
    number share no rank. Numbers grow; their tags repeat where those of before are free again.
    """

    def __init__(
        self,
        first: Callable[["UlfmFamily"], Transport],
        comm: MPI.Intracomm,
        gone: Sequence[int] = (),
    ) -> None:
        self._first = first  # makes the first transport of a family
        self.comm = comm  # of the ranks that were left when this family began
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
        """Abandons what nobody has used: there is nothing to revoke, and nobody to tell."""
        self.abandoned = self._met = True

    def new_number(self, least: int) -> int:
        """The first number from `least` on that is new to this rank, and whose tags are free."""
        if len(self._taken) == self._contexts:
            raise RuntimeError(f"{self._contexts:,} Comms were made and not freed: free some")
        number = max(least, self._next)
        while number % self._contexts in self._taken:
            number += 1
        return number

    def take(self, number: int) -> int:
        """Takes a number for a transport; returns the first of its tags."""
        context = number % self._contexts
        self._taken.add(context)
        return context * SPAN

    def skip(self, number: int) -> None:
        """Leaves out numbers up to this one, which a transport of this rank or of others has."""
        self._next = number + 1

    def give_back(self, first_tag: int) -> None:
        """Tags of a transport that was freed."""
        self._taken.remove(first_tag // SPAN)

    def keep(self, request: MPI.Request) -> MPI.Request:
        """Keeps a request, with its buffer, until it is complete, and for ever if it never is."""
        self._posted.append(request)
        if len(self._posted) > self._most:
            self._posted = [*filter(None, self._posted)]  # one that is complete is null
            self._most = max(FEWEST, 2 * len(self._posted))
        return request

    def confirm(self) -> None:
        if not self._meet(confirms=True):
            raise self.lost("lost a rank")

    def _meet(self, confirms: bool) -> bool:
        """Whether all ranks confirm, and none is lost; the same on all.

        Who shrinks comes too: else those who confirm would wait for it. Once it is False it stays.
        """
        if not self._met:
            try:
                self._met = not self.comm.Agree(int(confirms))
            except MPI.Exception:  # of all, where a rank is lost
                self._met = True
        return not self._met

    def shrink(self) -> Transport:
        """All shrink the whole job, again and again, so that they name the same communicator.

        They agree that all of them have the new one, before any uses it: it may be revoked from
        then on.
        """
        self._meet(confirms=False)
        job, left = MPI.COMM_WORLD, None
        with suppress(MPI.Exception):  # the others hear of it
            left = MPI.Intracomm(job.Shrink())
        job.Ack_failed()  # else it could not agree
        with self.noticing():
            agreed = job.Agree(int(left is not None))
        if left is None or not agreed:
            raise self.lost("lost a rank")
        alive = left.Get_group().Translate_ranks(range(left.Get_size()), job.Get_group())
        gone = sorted({*range(job.Get_size())} - {*alive})
        return self._first(UlfmFamily(self._first, left, gone))

    def communicator(self) -> MPI.Intracomm:
        """Another one of the same ranks, which nobody revokes. All call it when they have shrunk,
        before anything else, and confirm that they have it.
        """
        with self.noticing():
            made = MPI.Intracomm(self.comm.Shrink())
        if made.Get_size() < self.comm.Get_size():
            raise self.lost("lost a rank")
        return made

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Around calls of MPI that fail where a rank is lost."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_loss(error)

    def raise_loss(self, error: MPI.Exception) -> NoReturn:
        """Raises RankLost where a rank is gone, else the error."""
        gone = sorted(failed_ranks(MPI.COMM_WORLD) - {*self.gone})
        if not gone and error.Get_error_class() not in LOSSES:
            raise error
        who = f"rank {', '.join(map(str, gone))}" if gone else "a rank"
        raise self.lost(f"lost {who}") from error


def failed_ranks(comm: MPI.Intracomm) -> set[int]:
    """The ranks of a communicator that are known to be gone, by their numbers in the job."""
    failed = comm.Get_failed()
    ranks = failed.Translate_ranks(range(failed.Get_size()), MPI.COMM_WORLD.Get_group())
    failed.Free()
    return {*ranks}
