"""A stream of micro-batches in the order of 1F1B: the program of PipeDream, one op at a time.

    p = 3, stage 1    RECV_F0 RECV_F1 F0 SEND_F0  RECV_B0 F1 SEND_F1  RECV_F2 B0 SEND_B0 UPDATE0 ...

An epoch may have any number of micro-batches, and its end may move closer while it runs. So the
next op is found from the numbers of passes so far, and nothing else is kept.
"""

from collections.abc import Callable, Iterator

from nnmpi.schedules.lowering import RECEIVES, SENDS, message
from nnmpi.schedules.op import Kind, Op


def stream(p: int, stage: int, last: Callable[[], int]) -> Iterator[Op]:
    """What a stage of p does up to micro-batch `last()`, which may become less meanwhile.

    With a fixed end it is the program of the schedule pipedream. The end may move in a backward
    pass of micro-batch i to i + p - 1 or later: nothing behind that has been started by then.
    """
    posted = {Kind.RECV_F: 0, Kind.RECV_B: 0}  # receives so far
    forward = backward = 0
    while (op := _next(forward, backward, p - 1 - stage, stage, last())) is not None:
        forward, backward = forward + (op.kind is Kind.F), backward + (op.kind is Kind.B)
        for compute in (op, _next(forward, backward, p - 1 - stage, stage, last())):
            receive = compute and message(compute, RECEIVES, p, p)
            if receive and receive.micro == posted[receive.kind]:
                posted[receive.kind] += 1
                yield receive
        yield op
        if sent := message(op, SENDS, p, p):
            yield sent
        if op.kind is Kind.B:
            yield Op(Kind.UPDATE, op.micro, stage)


def _next(forward: int, backward: int, ahead: int, stage: int, last: int) -> Op | None:
    """After so many passes: forward passes are `ahead` of backward passes, as long as there are."""
    if forward <= min(last, backward + ahead):
        return Op(Kind.F, forward, stage)
    return Op(Kind.B, backward, stage) if backward <= last else None
