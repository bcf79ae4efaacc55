"""PipeDream's stream of operations: 1F1B with an update after each micro-batch, one operation at a
time, and windows of it.

    p = 3, stage 1    RECV_F1.0 RECV_F1.1 F0.0 SEND_F2.0  RECV_B2.0 F0.1 SEND_F2.1  RECV_F1.2 B0.0
                      SEND_B1.0 APPLY0 ...

An epoch may have any number of micro-batches, and its end may move closer while it runs. So the
next operation is computed from the numbers of passes so far, and no list is kept.
"""

from collections.abc import Callable, Iterator

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.passes import message_of, with_recomputed
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import PASSES, Kind, Op


def window(chain: Chain, m: int, recompute: bool = False) -> StepList:
    """Returns the list of a rank of PipeDream for m micro-batches, from an empty pipeline to an
    empty one; with `recompute`, backward passes repeat their forward pass first."""
    ops = (*stream(chain, lambda: m - 1),)
    if recompute:
        ops = (*with_recomputed(ops, chain),)
    passes = tuple(op for op in ops if op.kind in PASSES)
    ends = tuple(op for op in ops if op.kind is Kind.APPLY)
    return StepList(chain, passes, m, ops, ends)


def stream(chain: Chain, last: Callable[[], int]) -> Iterator[Op]:
    """Yields the operations of a rank of PipeDream, which has one stage, up to micro-batch
    `last()`, which may decrease meanwhile.

    With a fixed end it is 1F1B with an APPLY for each micro-batch, once the gradient of the input
    is on its way. During the backward pass of micro-batch i, `last()` may decrease to i + p - 1,
    but not to less: that is the last micro-batch of which a pass may have been started by then.
    """
    posted = {Kind.RECV_F: 0, Kind.RECV_B: 0}  # number of receives so far
    forward = backward = 0
    while (op := _next(chain, forward, backward, last())) is not None:
        forward, backward = forward + (op.kind is Kind.F), backward + (op.kind is Kind.B)
        for compute in (op, _next(chain, forward, backward, last())):
            receive = compute and message_of(compute, chain, sends=False)
            if receive and receive.micro == posted[receive.kind]:
                posted[receive.kind] += 1
                yield receive
        yield op
        if sent := message_of(op, chain, sends=True):
            yield sent
        if op.kind is Kind.B:
            yield Op(Kind.APPLY, op.micro)


def _next(chain: Chain, forward: int, backward: int, last: int) -> Op | None:
    """Returns PipeDream's next pass of a rank: forward until ahead by the stages that follow, then
    in turn; None at the end."""
    (unit,) = chain.units
    ahead = len(chain.place) - 1 - unit.stage
    if forward <= min(last, backward + ahead):
        return Op(Kind.F, forward, unit.stage, 0)
    return Op(Kind.B, backward, unit.stage, 0) if backward <= last else None
