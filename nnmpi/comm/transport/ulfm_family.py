"""The transports of one rank that outlive the loss of others: one communicator for all of them.

A death while MPI makes a communicator may end survivors: one that is half made cannot be revoked.
So MPI makes one where the job starts, and one where ranks shrink.

tags    0 ..              SPAN ..           2 SPAN ..
        first transport   second            third ...
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from nnmpi.comm.transport.base import TAGS, TransportFamily
from nnmpi.comm.transport.start_mpi import MPI
from nnmpi.comm.transport.ulfm_channel import failed_ranks

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
        comm: MPI.Intracomm,
        started: MPI.Intracomm,
        node: int,
        lost: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.comm = comm  # of the ranks that were left when this family began
        self.started = started  # all shrink it, again and again, so that they name the same one
        self.node = node  # the first rank of the job that shares memory with this one
        self._lost = lost  # before this family
        self._contexts = (comm.Get_attr(MPI.TAG_UB) or 0) // SPAN
        self._taken, self._next = set[int](), 0
        self._met = False
        self._posted: list[MPI.Request] = []
        self._most = FEWEST

    def abandon(self) -> None:
        if not self.abandoned:
            self.abandoned = True
            self.comm.Revoke()

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

    def meet(self, confirms: bool) -> bool:
        """Whether all ranks confirm, and none is lost; the same on all.

        Who shrinks comes too: else those who confirm would wait for it. Once it is False it stays.
        """
        if not self._met:
            try:
                self._met = not self.comm.Agree(int(confirms))
            except MPI.Exception:  # of all, where a rank is lost
                self._met = True
        return not self._met

    def shrunk(self) -> "UlfmFamily":
        """The family of the ranks that are left; RankLost if another is lost meanwhile.

        They agree that all of them have its communicator, before any uses it: it may be revoked
        from then on.
        """
        started, left = self.started, None
        with suppress(MPI.Exception):  # the others hear of it
            left = MPI.Intracomm(started.Shrink())
        started.Ack_failed()  # else it could not agree
        with self.noticing():
            agreed = started.Agree(int(left is not None))
        if left is None or not agreed:
            raise self.lost("lost a rank")
        there = left.Get_group().Translate_ranks(range(left.Get_size()), started.Get_group())
        lost = frozenset(range(started.Get_size())) - {*there}
        return UlfmFamily(left, started, self.node, lost)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Around calls of MPI that fail where a rank is lost."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_loss(error)

    def raise_loss(self, error: MPI.Exception) -> NoReturn:
        """Raises RankLost where a rank is gone, else the error."""
        gone = sorted({*failed_ranks(self.started)} - self._lost)
        if not gone and error.Get_error_class() not in LOSSES:
            raise error
        who = f"rank {', '.join(map(str, gone))}" if gone else "a rank"
        raise self.lost(f"lost {who}") from error
