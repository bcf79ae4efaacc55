"""Converts the passes of a schedule to programs that ranks can execute: adds messages, NOTE (losses
are known), APPLY (the update) and RECOMPUTE.

    the last of two ranks, 1f1b    F0 B0 F1 B1
    its program                    RECV_F0 F0  RECV_F1 B0 SEND_B0  F1  NOTE B1 SEND_B1  APPLY

Receives are posted one op ahead: the receive of F1 before B0. The stage of a message is the stage
of its op: RECV_F receives the input of that stage, SEND_F sends its output, RECV_B receives the
gradient of its output, SEND_B sends the gradient of its input. There is one tag for each boundary
between stages and each direction, so sends and receives must be in the same order there, which
`proof.py` proves. Between two stages of one rank there is no message.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import Schedule
from nnmpi.schedules.placement import Place, stages_of

# for each pass: the kind of its message, and the offset of the stage at the other end
RECEIVES = {Kind.F: (Kind.RECV_F, -1), Kind.B: (Kind.RECV_B, +1), Kind.I: (Kind.RECV_B, +1)}
SENDS = {Kind.F: (Kind.SEND_F, +1), Kind.B: (Kind.SEND_B, -1), Kind.I: (Kind.SEND_B, -1)}
COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)


def boundary(message: Op) -> int:
    """Returns which boundary between stages a message crosses: the number of the stage before it, s
    for the boundary between stages s and s + 1."""
    return message.stage - (message.kind in (Kind.RECV_F, Kind.SEND_B))


def programs(
    schedule: Schedule, p: int, m: int, v: int = 1, recompute: bool = False
) -> list[list[Op]]:
    """Returns the program (passes, messages and updates in order) of each of p ranks, for m
    micro-batches and v stages per rank.

    Raises ValueError if the schedule does not allow these numbers.

    recompute   a backward pass repeats its forward pass first, unless that came just before
    """
    schedule.check(p, m, v)
    if schedule.update_each:
        ranks = [list(stream(p, stage, lambda: m - 1)) for stage in range(p)]
    else:
        ranks = lower(schedule.compute(p, m, v), schedule.place(p, v))
    return [list(_with_recompute(ops)) for ops in ranks] if recompute else ranks


def forward_programs(place: Place, m: int) -> list[list[Op]]:
    """Returns the program of each rank for an evaluation with m micro-batches: forward passes and
    their messages. `place` is the rank of each stage."""
    p = max(place) + 1
    passes = (forward_passes(stages_of(place, r), m, p) for r in range(p))
    return [list(_with_messages(ops, place)) for ops in passes]


def forward_passes(stages: Sequence[int], m: int, p: int) -> list[Op]:
    """Returns the forward passes of m micro-batches on one of p ranks, which has the stages
    `stages`.

    A group of p micro-batches runs through the first stage of the rank, then through its next one.
    """
    groups = [range(g, min(g + p, m)) for g in range(0, m, p)]
    return [Op(Kind.F, i, s) for group in groups for s in stages for i in group]


def lower(compute: Sequence[Sequence[Op]], place: Place) -> list[list[Op]]:
    """Returns the program of each rank, given its passes in order (`compute`): adds messages
    between stages, NOTE (losses are known) and APPLY (the update). `place` is the rank of each
    stage."""
    return [list(_with_update([*_with_messages(ops, place)])) for ops in compute]


def _with_messages(ops: Sequence[Op], place: Place) -> Iterator[Op]:
    """Yields the passes of a rank with messages added. Before each pass comes the receive for the
    pass that follows it, and after each pass the send of its result."""
    receives, sends = ([message(op, table, place) for op in ops] for table in (RECEIVES, SENDS))
    # no op comes before the first one, so that posts its own receive as well
    in_turn = chain(receives[:1], *zip([*receives[1:], None], ops, sends, strict=True))
    return (op for op in in_turn if op)


def message(op: Op, table: dict[Kind, tuple[Kind, int]], place: Place) -> Op | None:
    """Returns the message that a pass receives (if `table` is RECEIVES) or sends (SENDS). Returns
    None for the first or last stage, which has no neighbour there, and if the neighbour stage is on
    the same rank."""
    if (other := peer(op, table, place)) is None or place[other] == place[op.stage]:
        return None
    return Op(table[op.kind][0], op.micro, op.stage, place[other])


def peer(op: Op, table: dict[Kind, tuple[Kind, int]], place: Place) -> int | None:
    """Returns the stage from which a pass gets its input or gradient (if `table` is RECEIVES), or
    to which its result goes (SENDS); None if there is none."""
    stages, other = range(len(place)), op.stage + table[op.kind][1] if op.kind in table else -1
    return other if op.stage in stages and other in stages else None


def _with_update(ops: list[Op]) -> Iterator[Op]:
    """Yields the operations of a rank with NOTE (all losses are known) inserted before the first
    pass after which the gradients of one of its stages are final, and APPLY (the update) at the
    end.

    Backward passes end in the rank's last stage first, so all its losses are known at NOTE.
    """
    final = {op.stage: k for k, op in enumerate(ops) if op.kind in (Kind.B, Kind.W)}
    first = min(final.values())
    yield from ops[:first]
    yield Op(Kind.NOTE)
    yield from ops[first:]
    yield Op(Kind.APPLY)


def _with_recompute(ops: list[Op]) -> Iterator[Op]:
    """Yields the operations of a rank with RECOMPUTE (the forward pass again) inserted before each
    backward pass that does not directly follow its forward pass."""
    last = None
    for op in ops:
        if op.kind in (Kind.B, Kind.I) and last != (Kind.F, *op[1:]):
            yield Op(Kind.RECOMPUTE, *op[1:])
        yield op
        if op.kind in COMPUTE:
            last = op


# ---- PipeDream, one op at a time


def stream(p: int, stage: int, last: Callable[[], int]) -> Iterator[Op]:
    """Yields the operations of a stage in PipeDream, up to micro-batch `last()`, which may decrease
    meanwhile.

    p = 3, stage 1    RECV_F0 RECV_F1 F0 SEND_F0  RECV_B0 F1 SEND_F1  RECV_F2 B0 SEND_B0 APPLY0 ...

    An epoch may have any number of micro-batches, and its end may move closer while it runs. So the
    next operation is computed from the numbers of passes so far, and no list is kept.

    With a fixed end it is 1F1B with an APPLY for each micro-batch, once the gradient of the input
    is on its way. During the backward pass of micro-batch i, `last()` may decrease to i + p - 1,
    but not to less: that is the last micro-batch of which a pass may have been started by then.
    """
    posted = {Kind.RECV_F: 0, Kind.RECV_B: 0}  # number of receives so far
    forward = backward = 0
    while (op := _next(forward, backward, p - 1 - stage, stage, last())) is not None:
        forward, backward = forward + (op.kind is Kind.F), backward + (op.kind is Kind.B)
        for compute in (op, _next(forward, backward, p - 1 - stage, stage, last())):
            receive = compute and message(compute, RECEIVES, range(p))
            if receive and receive.micro == posted[receive.kind]:
                posted[receive.kind] += 1
                yield receive
        yield op
        if sent := message(op, SENDS, range(p)):
            yield sent
        if op.kind is Kind.B:
            yield Op(Kind.APPLY, op.micro, stage)


def _next(forward: int, backward: int, ahead: int, stage: int, last: int) -> Op | None:
    """Returns the next pass of a stage in PipeDream, after `forward` forward and `backward`
    backward passes: forward passes until they are `ahead` of the backward passes, then both in
    turn. None after the backward pass of micro-batch `last`."""
    if forward <= min(last, backward + ahead):
        return Op(Kind.F, forward, stage)
    return Op(Kind.B, backward, stage) if backward <= last else None
