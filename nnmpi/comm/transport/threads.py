"""The transport of ranks that are threads of one process, for tests and for a single rank."""

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.base import (
    MARKS,
    AbortedError,
    Bytes,
    Ledger,
    SharedWindow,
    TransportFamily,
    add_up,
)
from nnmpi.comm.transport.hub import Callback, Hub, Posted, PostedMessage, RankKilled, Rendezvous

FAILED_TESTS = 30  # after so many in a row, a rank lets other threads run


class ThreadFamily(TransportFamily):
    """The transports of one thread since the start, or since ranks were last lost."""

    def __init__(self, hub: Hub, job_rank: int, members: Sequence[int], era: int = 0) -> None:
        self.hub, self.job_rank, self.members, self.era = hub, job_rank, members, era
        self.gone = [rank for rank in range(hub.size) if rank not in members]
        self.system = hub.scheduler

    def abandon(self) -> None:
        super().abandon()
        self.hub.revoke(self.era)

    def confirm(self) -> None:
        self.hub.confirm(self)

    def shrink(self) -> "ThreadTransport":
        survivors = self.hub.shrink(self)
        return ThreadFamily(self.hub, self.job_rank, survivors.ranks, survivors.era).first()

    def first(self) -> "ThreadTransport":
        """Makes this family's first transport, of all ranks left when it began."""
        return ThreadTransport(self, self.members, self.era)


class ThreadTransport:
    """The transport of a rank that is a thread; the Hub delivers its messages."""

    any_thread = True

    def __init__(self, family: ThreadFamily, ranks: Sequence[int], channel: Hashable) -> None:
        self.rank, self.size = ranks.index(family.job_rank), len(ranks)
        self.message_limit, self.marks = 1 << 62, MARKS
        self.ledger = Ledger(self.size)
        self.members, self.family = ranks, family
        self.fault_tolerant = family.hub.fault_tolerant
        self._hub, self._channel = family.hub, channel
        self._collectives = self._failed_tests = 0
        self._groups = Counter[tuple[int, ...]]()

    def isend(self, data: Bytes, to: int, tag: int) -> PostedMessage:
        self.ledger.sent_messages[to] += 1
        self.ledger.sent_bytes[to] += data.size
        label = f"a send of {data.size} bytes to rank {to}"
        message = PostedMessage(data, True, label, self.family.era, self.members[to])
        return self._hub.post(self.family, message, (self._channel, self.rank, to, tag))

    issend = isend  # the hub completes a send when its receive comes

    def irecv(self, data: Bytes, source: int, tag: int) -> PostedMessage:
        self.ledger.received_messages[source] += 1
        self.ledger.received_bytes[source] += data.size
        label = f"a receive of {data.size} bytes from rank {source}"
        message = PostedMessage(data, False, label, self.family.era, self.members[source])
        return self._hub.post(self.family, message, (self._channel, source, self.rank, tag))

    def receiver(self) -> Self:
        return self  # the hub compares all lengths

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        requests = [] if into is None else [self.irecv(into, source, tag)]
        requests += [] if out is None else [self.isend(out, to, tag)]
        self.wait(requests)

    def wait(self, requests: Sequence[Posted]) -> None:
        self._hub.wait(self.family, requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        done = self._hub.test(self.family, requests)
        self._failed_tests = 0 if done else self._failed_tests + 1
        if self._failed_tests >= FAILED_TESTS:  # polling would keep the interpreter lock
            self._failed_tests = 0
            time.sleep(0)
        return done

    def ibarrier(self) -> Rendezvous:
        return self.join_all()

    def join_all(self, mark: int = 0) -> Rendezvous:
        """Returns a request that is complete when all ranks have joined with the same mark."""
        return self._join(None, len, mark)

    def barrier(self) -> None:
        self.wait([self.ibarrier()])

    def all_reduce(self, array: NDArray[Any]) -> None:
        self.wait(self.start_all_reduce(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[Rendezvous]:
        return [self._join(array.copy(), partial(add_up, array))]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        self._collectives += 1
        new = type(self)(self.family, self.members, (self._channel, self._collectives))
        new.ledger = ledger or self.ledger
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        rows = self._gather((color, key, self.rank))
        if color is None:
            return None
        group = [r for _, _, r in sorted(row for row in rows if row[0] == color)]
        channel = (self._channel, self._collectives, color)
        return type(self)(self.family, [self.members[r] for r in group], channel)

    def group(self, ranks: Sequence[int]) -> Self:
        self._groups[*ranks] += 1  # the members count alike
        channel = (self._channel, "group", *ranks, self._groups[*ranks])
        return type(self)(self.family, [self.members[r] for r in ranks], channel)

    def split_node(self) -> Self:
        node = self.split(self.family.job_rank // self._hub.per_node, self.rank)
        assert node is not None
        return node

    def free(self) -> None:
        pass  # nothing is held for it

    def die(self) -> NoReturn:
        """Kills this rank; called by its own thread."""
        self._hub.lose(self.family.job_rank)
        raise RankKilled(f"rank {self.family.job_rank} has killed itself")

    def free_memory(self) -> int:
        return self._hub.free_memory

    def window(self, nbytes: int) -> SharedWindow:
        segments, transport = self._gather(np.zeros(nbytes, np.uint8)), self.duplicate()

        return SharedWindow(
            segments,
            barrier=lambda mark: transport.wait([transport.join_all(mark)]),
            ibarrier=lambda mark: [transport.join_all(mark)],
            short_sum=lambda *_: None,
            free=transport.free,  # arrays that view the memory stay valid
            is_viewed=lambda: False,
        )

    def abort(self, message: str, status: int = 1) -> NoReturn:
        self._hub.abort(message)
        raise AbortedError(message)

    def _join(self, value: Any, callback: Callback, mark: int = 0) -> Rendezvous:
        self._collectives += 1
        key = self._channel, self._collectives, mark
        return self._hub.join(self.family, key, self.members, value, callback)

    def _gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in rank order."""
        values: list[Any] = []
        self.wait([self._join(value, values.extend)])
        return values
