"""What communicators refuse while they work: wrong lengths, and use after free."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnmpi.comm import Comm, MessageLengthError, Work


def messages_of_another_length_are_refused(comm: Comm) -> None:
    """On the rank that receives, however it completes the receive; the next message arrives."""
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # Open MPI cuts what is too long without an error where a rank sends to itself
    lengths = {3: "24", 0: "0"} | ({5: "(40|more)"} if comm.size > 1 else {})

    def poll(work: Work) -> None:
        while not work.poll():
            pass

    for complete in (poll, Work.wait):
        for n, got in lengths.items():
            received = comm.irecv(np.zeros(4), source)
            sent = comm.isend(np.ones(n), to)
            words = rf"rank {source}: expected 32 bytes, got {got}; receive into an array of"
            with pytest.raises(MessageLengthError, match=words):
                complete(received)
            with pytest.raises(MessageLengthError):  # again
                received.wait()
            sent.wait()
        x = np.zeros(4)
        received, sent = comm.irecv(x, source), comm.isend(np.ones(4), to)
        complete(received)
        sent.wait()
        assert x.tolist() == [1, 1, 1, 1]


def parts_of_another_length_are_refused(comm: Comm) -> None:
    """Whether they are more or less than the array."""
    for n in (2 * comm.size - 1, 2 * comm.size + 1):
        for call in (comm.reduce_scatter, comm.all_gather):
            with pytest.raises(ValueError, match=f"sum to {2 * comm.size}, but the array has {n} "):
                call(np.ones(n), "ring", [2] * comm.size)


USES: dict[str, Callable[[Comm], Any]] = {
    "all_reduce": lambda c: c.all_reduce(np.ones(2)),
    "start": lambda c: c.start(np.ones(2), "ring"),
    "reduce_scatter": lambda c: c.reduce_scatter(np.ones(2)),
    "start_all_gather": lambda c: c.start_all_gather(np.ones(2)),
    "broadcast": lambda c: c.broadcast(np.ones(2)),
    "barrier": lambda c: c.barrier(),
    "isend": lambda c: c.isend(np.ones(2), 0),
    "irecv": lambda c: c.irecv(np.ones(2), 0),
    "split": lambda c: c.split(0),
    "shared": lambda c: c.shared(2, "float32"),
    "node_memory": lambda c: c.node_memory(2, "float32"),
    "node": lambda c: c.node(),
    "agree": lambda c: c.agree(None),
    "progress_thread": lambda c: c.progress_thread(),
    "ledger": lambda c: c.ledger,
    "free": lambda c: c.free(),
}


def what_was_freed_raises(comm: Comm) -> None:
    part = comm.split(0)
    buffer, memory, late = (
        part.shared(3, "float32"),
        part.node_memory(3, "float32"),
        part.shared(3, "float32"),
    )
    buffer.free()
    memory.free()
    for use in (
        lambda: buffer.mine[:],
        lambda: np.sum(buffer.total),
        buffer.all_reduce,
        buffer.start,
        buffer.own,
        buffer.free,
    ):
        with pytest.raises(RuntimeError, match=rf"^a shared buffer of Comm {part.name} was freed"):
            use()
    for use in (
        lambda: memory.array.__setitem__(0, 1.0),
        lambda: np.sum(memory.array),
        memory.barrier,
        memory.free,
    ):
        with pytest.raises(RuntimeError, match=rf"^the memory {part.name}/node_.* was freed"):
            use()
    late_free = late._reduction.free
    part.free()
    for call in (*USES.values(), lambda _: late.all_reduce(), lambda _: late.free()):
        with pytest.raises(RuntimeError, match=rf"^Comm {part.name} was freed, and cannot be used"):
            call(part)
    late_free()
    comm.barrier()
