"""The call that makes a Comm of some ranks: these ranks meet in a barrier, then MPI makes it.

In round i each member sends a message to the member 2^i places further on and receives one, so
after log2(n) rounds all have come. These messages are a Work: while a member waits, it moves its
other operations, for which members that are late may wait. MPI's own call would not.

The call has no number in the log: only collectives of the whole Comm have one, the same on all
ranks.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from nnmpi.comm.call_log import CallSignature
from nnmpi.comm.calls import CallRunner, record_of
from nnmpi.comm.progress import Work
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import TAGS, Transport

TAG = TAGS - 1
"""The tag that roll calls use too: all ranks make these, so none runs while a group is made."""

LONGEST_NAME = 40  # characters of the members' numbers in the name of a Comm


def group_name(ranks: Sequence[int]) -> str:
    """The ranks of a group as text, such as 0+2+5; for a long list their number and a checksum."""
    text = "+".join(map(str, ranks))
    return text if len(text) <= LONGEST_NAME else f"{len(ranks)}:{crc32(text.encode()):08x}"


def group_transport(calls: CallRunner, ranks: Sequence[int], transport: Transport) -> Transport:
    """Makes a transport of the given ranks of `transport`; these call it, and no others."""
    at = ranks.index(transport.rank)
    signature = CallSignature(calls.comm, "group", group_name(ranks), None, 0, ranks[at - 1])
    call = record_of(signature, -1)
    Work(_meeting(ranks, at, transport), transport, calls.progress, call).wait()
    with calls.progress.log.during(call):
        return transport.group(ranks)


def _meeting(ranks: Sequence[int], at: int, transport: Transport) -> Steps:
    out, into = np.zeros((2, 1), np.uint8)
    distance = 1
    while distance < len(ranks):
        to, source = ranks[(at + distance) % len(ranks)], ranks[at - distance]
        yield [transport.irecv(into, source, TAG), transport.isend(out, to, TAG)]
        distance *= 2
