"""Proves that the programs of a pipeline can be carried out, by carrying them out on paper.

First each rank by itself: every pass of its stages is there once, after what it needs. Then all of
them together: sends and receives do not wait; a forward or backward pass waits for the message that
its receive got. On a boundary and direction (one tag) the n-th receive gets the n-th send. An op
that can run can still run later, so if all ops have run in one order, dependencies have no cycle
and no timing leads to a deadlock. Otherwise the error names an op and its rank.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from nnmpi.schedules.lowering import RECEIVES, boundary, message
from nnmpi.schedules.op import Kind, Op

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W
RECV_F, SEND_F, RECV_B, SEND_B = Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B
RECOMPUTE, REDUCE, UPDATE = Kind.RECOMPUTE, Kind.REDUCE, Kind.UPDATE

# of an op: what has to run before it (one of each row), and what must not
NEEDS: dict[Kind, tuple[tuple[Kind, ...], ...]] = {
    F: ((RECV_F,),),
    B: ((F,), (RECV_B,)),
    I: ((F,), (RECV_B,)),
    W: ((I,),),
    RECOMPUTE: ((F,),),
    SEND_F: ((F,),),
    SEND_B: ((B, I),),
    UPDATE: ((B, W),),  # of one micro-batch
}
EXCLUDES = {B: (B, I), I: (B, I), RECOMPUTE: (RECOMPUTE, B, I)}

Have: TypeAlias = dict[tuple[int, int], set[Kind]]  # (stage, micro): what has run
Channel: TypeAlias = tuple[bool, int]
"""Whether messages go forward, and the stage before the boundary that they cross."""


class ScheduleError(ValueError):
    """Programs that cannot be carried out, or are not complete."""


class PipelineSize(NamedTuple):
    """The numbers of a pipeline; `backward` is False in evaluation."""

    ranks: int
    stages: int  # of all ranks together
    micro_batches: int
    backward: bool = True

    def of_rank(self, r: int) -> range:
        """The stages of a rank."""
        return range(r, self.stages, self.ranks)

    def crosses(self, message: Op) -> bool:
        """Whether there are stages on both sides of its boundary."""
        return 0 <= boundary(message) < self.stages - 1


def prove(programs: Sequence[Sequence[Op]], size: PipelineSize) -> None:
    """Raises ScheduleError unless the programs are complete and run to their end."""
    if len(programs) != size.ranks:
        raise ScheduleError(f"there are {len(programs)} programs for {size.ranks} ranks")
    for r, ops in enumerate(programs):
        _check_rank(r, ops, size)
    for _ in in_order(programs, size.stages):
        pass


def _name(op: Op) -> str:
    return f"{op} of stage {op.stage}" if op.micro >= 0 else f"{op}"


# ---- each rank


def _check_rank(r: int, ops: Sequence[Op], size: PipelineSize) -> None:
    """Every op may run where it stands, as far as this rank knows, and none is missing."""
    have: Have = {(s, i): set() for s in size.of_rank(r) for i in range(size.micro_batches)}
    step: set[Kind] = set()  # REDUCE and UPDATE of all micro-batches together
    for op in ops:
        fault = _fault_of_step(op, have, step, size) if op.micro < 0 else _fault(op, have, size)
        if fault:
            raise ScheduleError(f"rank {r} cannot run {_name(op)}: {fault}")
        (step if op.micro < 0 else have[op.stage, op.micro]).add(op.kind)
    for (s, i), kinds in have.items():
        for kind in _missing(kinds, step, size):
            raise ScheduleError(f"rank {r} has no {_name(Op(kind, i, s))}")


def _fault(op: Op, have: Have, size: PipelineSize) -> str:
    """Why an op of one micro-batch cannot run, if so."""
    kinds = have.get((op.stage, op.micro))
    if kinds is None:
        return "it has no such stage, or there is no such micro-batch"
    if before := kinds.intersection(EXCLUDES.get(op.kind, (op.kind,))):
        return f"{Op(before.pop(), op.micro)} has run before it"
    for needed in NEEDS.get(op.kind, ()):
        message = Op(needed[0], op.micro, op.stage)
        wanted = size.crosses(message) if needed[0] in (RECV_F, RECV_B) else True
        if wanted and kinds.isdisjoint(needed):
            return f"{message} has not run before it"
    return _fault_of_message(op, size) if op.peer >= 0 else ""


def _fault_of_message(op: Op, size: PipelineSize) -> str:
    """Why a message reaches no stage, if so."""
    if not size.crosses(op):
        return "there is no stage on the other side"
    other = boundary(op) if op.kind in (RECV_F, SEND_B) else boundary(op) + 1
    if op.peer != other % size.ranks:
        return f"stage {other} is on rank {other % size.ranks}, not on rank {op.peer}"
    return ""


def _fault_of_step(op: Op, have: Have, step: set[Kind], size: PipelineSize) -> str:
    """Why REDUCE or UPDATE cannot run, if so."""
    if op.kind in step:
        return "it has run before"
    if op.kind is UPDATE and REDUCE not in step:
        return "REDUCE has not run before it"
    left = [at for at, kinds in have.items() if kinds.isdisjoint((B, W))]
    if op.kind is UPDATE and left:
        return f"{_name(Op(W if I in have[left[0]] else B, left[0][1], left[0][0]))} has not run"
    final = {s for s, _ in have} - {s for s, _ in left}
    if op.kind is REDUCE and final:
        return f"the gradients of stage {min(final)} are final already"
    if op.kind is REDUCE and any(F not in k for (s, _), k in have.items() if s == size.stages - 1):
        return "losses are missing"
    return ""


def _missing(kinds: set[Kind], step: set[Kind], size: PipelineSize) -> Iterator[Kind]:
    """What a micro-batch of a stage lacks at the end."""
    if F not in kinds:
        yield F
    if size.backward:
        if kinds.isdisjoint((B, W)):
            yield W if I in kinds else B
        if UPDATE not in step | kinds:
            yield UPDATE


# ---- all ranks


def channel(message: Op) -> Channel:
    """The channel of a message, which delivers in the order of sends."""
    return message.kind in (SEND_F, RECV_F), boundary(message)


def in_order(programs: Sequence[Sequence[Op]], stages: int) -> Iterator[tuple[int, Op]]:
    """Each op with its rank, in an order in which they can run: messages are there when needed."""
    sent: dict[Channel, list[int]] = defaultdict(list)  # micro-batches, in order
    posted: dict[Channel, dict[int, int]] = defaultdict(dict)  # micro-batch: which receive
    left = [deque(ops) for ops in programs]

    def arrived(r: int, op: Op) -> bool:
        """Whether the message is there that the op needs."""
        receive = message(op, RECEIVES, len(programs), stages)
        if receive is None:
            return True
        sends, n = sent[channel(receive)], posted[channel(receive)][op.micro]
        if n < len(sends) and sends[n] != op.micro:
            raise ScheduleError(
                f"rank {r} cannot run {_name(op)}: its message is received as number {n + 1} of "
                f"its boundary and direction, which is sent for micro-batch {sends[n]}"
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
        raise ScheduleError(f"deadlock: {', '.join(stuck)}: no message arrives")
