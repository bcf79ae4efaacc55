"""Messages between workers and parameter servers: requests and replies, gradients and parameters.

worker                                                         server
  request   a few float64, and which parameters were used  ─►
  gradient  the server's slice of flat_grad                ─►
                                 a few float64  ◄─  reply
                   the server's slice of flat  ◄─  parameters"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.comm import Comm, System
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, wire_of

REQUEST, REPLY, GRADIENT, PARAMETERS = range(4)  # tags
POLLS, POLL_SECONDS = 20, 5e-5  # polls before the first pause, and seconds of a pause


class Purpose(IntEnum):
    """Why a worker asks a server; replies come with the current parameters."""

    START = 0  # an epoch begins
    PUSH = 1  # a gradient follows; the reply says if the worker is to compute another one
    DONE = 2  # the epoch has ended; the reply comes when all workers have sent this


class WorkerRequest(NamedTuple):
    """The numbers that a worker sends to each parameter server as a request.

    purpose   a Purpose, such as PUSH: a gradient follows
    samples   the number of samples of which the gradient was computed
    divisor   the number by which their loss is divided for the mean
    loss      the sum of their losses
    stop      not 0 if the worker knows that some rank wants to end the run
    squares   the sum of squares of the worker's whole gradient
    """

    purpose: float
    samples: float = 0
    divisor: float = 0
    loss: float = 0
    stop: float = 0
    squares: float = 0


class Totals(NamedTuple):
    """The contributions of all workers to an epoch so far: the sums of their requests, the number
    of pushes, and of updates skipped because a value was not finite."""

    pushes: float = 0
    samples: float = 0
    divisor: float = 0
    loss: float = 0
    skipped: float = 0


class Reply(NamedTuple):
    """The reply of a parameter server to a worker's request; the current parameters follow.

    go       True if the worker is to compute another gradient; the first server decides
    stop     True if some rank wants to end the run
    """

    go: bool
    stop: bool
    totals: Totals


def poll_until(system: System, is_done: Callable[[], bool]) -> None:
    """Calls `is_done` until it returns True; with pauses, since polling would take a core from
    another rank, but not between the first POLLS calls: a pause takes longer than a call."""
    polls = 0
    while not is_done():
        polls += 1
        system.sleep(0 if polls < POLLS else POLL_SECONDS)


def wait_all(system: System, works: Iterable[Transfer]) -> None:
    """Waits for transfers in turn, polling with pauses (see `poll_until`)."""
    for work in works:
        poll_until(system, work.poll)


class RequestChannel:
    """A worker's connection to all parameter servers; `slices` are those that each server
    updates."""

    def __init__(self, layout: Layout, store: LocalStore, slices: Sequence[slice]) -> None:
        self._comm, self._wire, self._store = layout.all, wire_of(layout.all, store.on), store
        self._servers = range(layout.workers, layout.all.size)
        self._slices = slices
        self._request = np.zeros(len(WorkerRequest._fields) + len(store.parameters))
        self._replies = np.zeros((layout.servers, 2 + len(Totals._fields)))

    def ask(self, request: WorkerRequest) -> Reply:
        """Sends a request to all servers (with the gradient, for a PUSH), and returns the reply
        when it and new parameters have arrived."""
        comm, wire, store, works = self._comm, self._wire, self._store, list[Transfer]()
        self._request[:] = [*request, *(p.has_grad for p in store.parameters)]
        for rank, part, reply in zip(self._servers, self._slices, self._replies, strict=True):
            works += [
                comm.irecv(reply, rank, REPLY),
                wire.irecv(store.flat[part], rank, PARAMETERS),
                comm.isend(self._request, rank, REQUEST),
            ]
            if request.purpose == Purpose.PUSH:
                works.append(wire.isend(store.flat_grad[part], rank, GRADIENT))
        wait_all(comm.system, works)
        # the first server decides when the epoch ends; any server may know of a stop
        go, _, *totals = self._replies[0].tolist()
        return Reply(go > 0, bool(self._replies[:, 1].any()), Totals(*totals))


class ReplyChannel:
    """A parameter server's connection to one worker.

    `request`, `used` and `gradient` belong to the last request. If `copies` is True, parameters are
    copied before they are sent, so that they can be updated meanwhile.
    """

    def __init__(
        self, comm: Comm, worker: int, store: LocalStore, part: slice, copies: bool
    ) -> None:
        self._comm, self._wire, self._worker = comm, wire_of(comm, store.on), worker
        self._head = np.zeros(len(WorkerRequest._fields) + len(store.parameters))
        self._reply = np.zeros(2 + len(Totals._fields))
        self._parameters = store.flat[part]
        zeros_like = store.on.xp.zeros_like
        self._sent = zeros_like(self._parameters) if copies else self._parameters
        self.gradient = zeros_like(self._parameters)  # of the server's slice
        # the head of a request and then its gradient, until both have arrived
        self._receiving: list[Transfer] = []
        self._sending: list[Transfer] = []

    @property
    def request(self) -> WorkerRequest:
        """The last request that this server has received from the worker."""
        return WorkerRequest(*self._head[: len(WorkerRequest._fields)].tolist())

    @property
    def used(self) -> Array:
        """For each parameter, 1 if the worker's last request came with a gradient of it, else 0."""
        return self._head[len(WorkerRequest._fields) :]

    def listen(self) -> None:
        """Starts to receive the worker's next request."""
        self._receiving = [self._comm.irecv(self._head, self._worker, REQUEST)]

    def poll(self) -> None:
        """Polls the receive from the worker, which moves all messages."""
        if self._receiving:
            self._receiving[-1].poll()

    def arrived(self) -> bool:
        """True once for each request that has arrived with its gradient."""
        works = self._receiving
        # only the head tells that a gradient follows; `poll` then polls its receive
        if len(works) == 1 and works[0].done and self.request.purpose == Purpose.PUSH:
            works.append(self._wire.irecv(self.gradient, self._worker, GRADIENT))
        if not works or not works[-1].done:
            return False
        works.clear()
        return True

    def reply(self, reply: Reply) -> None:
        """Starts to send a reply and the server's slice of the parameters to the worker."""
        self.flush()
        self._reply[:] = [reply.go, reply.stop, *reply.totals]
        if self._sent is not self._parameters:
            self._sent[:] = self._parameters
        self._sending = [
            self._wire.isend(self._sent, self._worker, PARAMETERS),
            self._comm.isend(self._reply, self._worker, REPLY),
        ]

    def flush(self) -> None:
        """Waits until the last reply to the worker has been sent."""
        wait_all(self._comm.system, self._sending)
