"""Proves that the programs of a pipeline's ranks are complete and cannot deadlock, by running them
symbolically.

First each rank by itself: every pass of its stages must be there once, after the operations it
needs. Then all ranks together: sends and receives do not wait; a forward or backward pass waits for
its message. On one boundary between stages and in one direction the n-th receive gets the n-th
send. An operation that can run can still run later, so if all have run in one order, dependencies
have no cycle and no timing leads to a deadlock. Otherwise the error names an operation and its
rank.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from nnmpi.options import user_code
from nnmpi.options.quoting import quoted
from nnmpi.schedules.lowering import RECEIVES, SENDS, boundary, lower, message, peer
from nnmpi.schedules.op import COMPUTE, MESSAGES, Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES, Schedule
from nnmpi.schedules.placement import Place, stages_of

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W
RECV_F, SEND_F, RECV_B, SEND_B = Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B
RECOMPUTE, NOTE, APPLY = Kind.RECOMPUTE, Kind.NOTE, Kind.APPLY

# for each op: the ops of which one must run before it, besides its receive; those that must not
NEEDS = {B: (F,), I: (F,), W: (I,), RECOMPUTE: (F,), SEND_F: (F,), SEND_B: (B, I), APPLY: (B, W)}
EXCLUDES = {B: (B, I), I: (B, I), RECOMPUTE: (RECOMPUTE, B, I)}
LOCAL = {F: (F,), B: (B, I), I: (B, I)}
"""The passes of which one must run before a pass, in the stage next to it on the same rank."""

MESSAGE_OF = {kind: (op, table) for table in (RECEIVES, SENDS) for op, (kind, _) in table.items()}
"""For each kind of message, its pass and the table (RECEIVES or SENDS) that contains it."""

OF_PROGRAMS = frozenset((*COMPUTE, *MESSAGES, NOTE, APPLY))
"""The kinds of operations in programs; the other kinds are in step lists only."""

Have: TypeAlias = dict[tuple[int, int], set[Kind]]  # (stage, micro): the kinds that have run
Channel: TypeAlias = tuple[bool, int]
"""True if messages go forward, and the stage before the boundary that they cross."""


class ScheduleError(ValueError):
    """Raised because the programs of a pipeline's ranks are incomplete or cannot be carried out."""


def prove(
    programs: Sequence[Sequence[Op]], place: Place, micro_batches: int, backward: bool = True
) -> None:
    """Raises ScheduleError unless the programs of all ranks, for a step with this number of
    micro-batches, are complete and can run to their end.

    place      the rank of each stage
    backward   False: the programs are those of an evaluation
    """
    for r, ops in enumerate(programs):
        have: Have = {(s, i): set() for s in stages_of(place, r) for i in range(micro_batches)}
        _check_rank(r, ops, have, place, APPLY if backward else F)
    for _ in in_order(programs, place):
        pass


def _name(op: Op) -> str:
    return f"{op} of stage {op.stage}" if op.micro >= 0 else f"{op}"


# ---- each rank


def _check_rank(r: int, ops: Sequence[Op], have: Have, place: Place, last: Kind) -> None:
    """Raises ScheduleError unless, in the program of one rank, each operation follows what it needs
    on this rank, and all passes are complete.

    Adds each operation's kind to `have`, a dict: (stage, micro-batch) -> kinds. A program is
    complete if the operation `last` is in it: F of each micro-batch in an evaluation, APPLY in
    training, which needs all backward passes, which need all forward passes.
    """
    step: set[Kind] = set()  # NOTE and APPLY of all micro-batches together
    for op in ops:
        if op.kind not in OF_PROGRAMS:
            fault = "no schedule has such an operation"
        elif op.micro < 0:
            fault = _fault_of_step(op, have, step, len(place))
        else:
            fault = _fault(op, have, place)
        if fault:
            raise ScheduleError(f"rank {r} cannot run {_name(op)}: {fault}")
        (step if op.micro < 0 else have[op.stage, op.micro]).add(op.kind)
    for (s, i), kinds in have.items():
        if last not in step | kinds:
            raise ScheduleError(f"rank {r} has no {_name(Op(last, i, s))}")


def _fault(op: Op, have: Have, place: Place) -> str:
    """Returns a text that says why an operation of one micro-batch cannot run at its place in the
    program, or "". `have` has, by (stage, micro-batch), the kinds of operations that come before
    it."""
    kinds = have.get((op.stage, op.micro))
    if kinds is None:
        return "it has no such stage, or there is no such micro-batch"
    if excluded := kinds.intersection(EXCLUDES.get(op.kind, (op.kind,))):
        return f"{Op(excluded.pop(), op.micro)} has run before it"
    received, other = message(op, RECEIVES, place), peer(op, RECEIVES, place)
    for needed in (NEEDS.get(op.kind), (received.kind,) if received else None):
        if needed and kinds.isdisjoint(needed):
            return f"{Op(needed[0], op.micro)} has not run before it"
    if other is not None and not received and have[other, op.micro].isdisjoint(LOCAL[op.kind]):
        return f"{_name(Op(LOCAL[op.kind][0], op.micro, other))} has not run before it"
    if op.kind in MESSAGE_OF:
        sent_for, table = MESSAGE_OF[op.kind]
        wanted = message(op._replace(kind=sent_for), table, place)
        if wanted is None:
            return "there is no stage of another rank on the other side"
        if wanted.peer != op.peer:
            return f"the stage on the other side is on rank {wanted.peer}, not on rank {op.peer}"
    return ""


def _fault_of_step(op: Op, have: Have, step: set[Kind], stages: int) -> str:
    """Returns a text that says why `op`, which is NOTE or APPLY, cannot run at its place in a
    rank's program, or "". Of the operations before it, `have` has the kinds of passes and messages
    by (stage, micro-batch), and `step` has NOTE and APPLY if they are among them. `stages` is the
    number of stages of the model."""
    if op.kind in step:
        return "it has run before"
    left = [at for at, kinds in have.items() if kinds.isdisjoint((B, W))]
    if op.kind is APPLY:
        if NOTE not in step:
            return "NOTE has not run before it"
        if left:
            stage, micro = left[0]
            return f"{_name(Op(W if I in have[left[0]] else B, micro, stage))} has not run"
        return ""
    if final := {s for s, _ in have} - {s for s, _ in left}:
        return f"the gradients of stage {min(final)} are final already"
    if any(F not in kinds for (s, _), kinds in have.items() if s == stages - 1):
        return "losses are missing"
    return ""


# ---- all ranks


def channel(message: Op) -> Channel:
    """Returns the channel of a message: its direction and the boundary between stages that it
    crosses. A channel delivers messages in the order in which they are sent."""
    return message.kind in (SEND_F, RECV_F), boundary(message)


def in_order(programs: Sequence[Sequence[Op]], place: Place) -> Iterator[tuple[int, Op]]:
    """Yields all operations as (rank, operation), in an order in which they can run; raises
    ScheduleError on a deadlock."""
    sent: dict[Channel, list[int]] = defaultdict(list)  # micro-batches, in order
    posted: dict[Channel, dict[int, int]] = defaultdict(dict)  # micro-batch: number of its receive
    left = [deque(ops) for ops in programs]

    def arrived(r: int, op: Op) -> bool:
        """True if the message that an operation of rank r needs has been sent, or if it needs
        none."""
        receive = message(op, RECEIVES, place)
        if receive is None:
            return True
        sends, n = sent[channel(receive)], posted[channel(receive)][op.micro]
        if n < len(sends) and sends[n] != op.micro:
            raise ScheduleError(
                f"rank {r} cannot run {_name(op)}: its message is received as number {n + 1} of "
                f"its boundary and direction, but send {n + 1} is for micro-batch {sends[n]}"
            )
        return n < len(sends)

    moved = True
    while moved:
        moved = False
        for r, ops in enumerate(left):
            while ops and arrived(r, ops[0]):
                op = ops.popleft()
                if op.kind in (SEND_F, SEND_B):
                    sent[channel(op)].append(op.micro)
                elif op.kind in (RECV_F, RECV_B):
                    receives = posted[channel(op)]
                    receives[op.micro] = len(receives)
                yield r, op
                moved = True
    stuck = [f"rank {r} cannot run {_name(ops[0])}" for r, ops in enumerate(left) if ops]
    if stuck:
        raise ScheduleError(f"deadlock: {', '.join(stuck)}: no message arrives for them")


# ---- schedules by name: those of nnmpi, and yours as package.module:NAME


def find(name: str) -> Schedule:
    """Returns the schedule with this name in SCHEDULES, or the user's at `package.module:NAME`.

    A user's schedule is proved whenever its passes are computed, for the given numbers of ranks,
    micro-batches and stages.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    if not user_code.is_named(name):
        names = ", ".join(SCHEDULES)
        raise ValueError(f"schedule {quoted(name)} is not one of {names} or package.module:NAME")
    schedule = user_code.imported(name, "schedule")
    if not isinstance(schedule, Schedule) or schedule.update_each:
        raise ValueError(
            f"schedule {quoted(name)} must be a Schedule of nnmpi.schedules.pipeline, without "
            f"update_each; it is of type {type(schedule).__name__}"
        )

    def proved(p: int, m: int, v: int) -> list[list[Op]]:
        try:
            compute = schedule.compute(p, m, v)
            place = schedule.place(p, v)
            prove(lower(compute, place), place, m)
            return compute
        except Exception as error:
            reason = error if isinstance(error, ScheduleError) else user_code.reason_of(error)
            raise ValueError(
                f"schedule {quoted(name)} of {p} ranks, {m} micro-batches and {v} stages a rank: "
                f"{reason}"
            ) from error

    return schedule._replace(compute=proved)
