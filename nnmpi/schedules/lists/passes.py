"""Makes the first part of a rank's list: its passes, and the messages between stages.

A schedule orders the passes of whole stages. Here each is replaced by the passes of the stage's
units (parts without a pipeline boundary inside, usually layers): F3.0 is the forward pass of unit 3
with micro-batch 0, and B3.0 its backward pass. NOTE follows the last forward pass: all losses are
known.

a schedule's    F0 (stage 2)                 B0 (stage 2)
units           F3.0 F4.0                    B4.0 B3.0
with messages   RECV_F2.0  F3.0 F4.0  B4.0 B3.0  SEND_B2.0
with a note     RECV_F2.0  F3.0 F4.0  NOTE  B4.0 B3.0  SEND_B2.0
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain as joined
from itertools import groupby
from operator import attrgetter

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.op import FORWARD, NONE, PASSES, Kind, Op


def forward_passes(stages: Sequence[int], m: int, p: int) -> list[Op]:
    """Returns the forward passes of m micro-batches in an evaluation, on one of p ranks. A group of
    p micro-batches runs through the first of its `stages`, then through the next one."""
    groups = [range(g, min(g + p, m)) for g in range(0, m, p)]
    return [Op(Kind.F, i, s) for group in groups for s in stages for i in group]


def units_of(passes: Iterable[Op], chain: Chain) -> Iterator[Op]:
    """Yields, for each pass of a whole stage, the passes of its units.

    The first stage needs no gradient of its input: I is left out, and B replaces W.
    """
    for op in passes:
        units, kind = chain.of_stage[op.stage], op.kind
        if not chain.units[units[0]].takes_gradient:
            if kind is Kind.I:
                continue
            kind = Kind.B if kind is Kind.W else kind
        for u in units if kind in FORWARD else reversed(units):
            yield Op(kind, op.micro, op.stage, u)


def with_recomputed(ops: Iterable[Op], chain: Chain) -> Iterator[Op]:
    """Yields a rank's operations, with a repeated forward pass (RECOMPUTE) added before each
    backward pass of a stage that does not directly follow its forward pass."""
    last = None
    for op in ops:
        units = chain.of_stage.get(op.stage, range(0))
        begins = op.kind in (Kind.B, Kind.I) and op.at == units[-1]
        if begins and last != op._replace(kind=Kind.F):
            yield from (Op(Kind.RECOMPUTE, op.micro, op.stage, u) for u in units)
        yield op
        last = op if op.kind in PASSES else last


def with_note(ops: Iterable[Op]) -> Iterator[Op]:
    """Adds NOTE after the last forward pass, when all losses are known."""
    listed = [*ops]
    last = max((k for k, op in enumerate(listed) if op.kind is Kind.F), default=NONE)
    yield from listed[: last + 1]
    yield Op(Kind.NOTE)
    yield from listed[last + 1 :]


def with_messages(ops: Iterable[Op], chain: Chain) -> Iterator[Op]:
    """Yields a rank's passes with messages between stages. A send comes right after its pass; a
    receive is posted before the preceding pass of a whole stage, to arrive meanwhile."""
    stages = [[*run] for _, run in groupby(ops, attrgetter("kind", "stage", "micro"))]
    arriving = ((message_of(op, chain, sends=False) for op in stage) for stage in stages)
    receives = [[*filter(None, messages)] for messages in arriving]
    # nothing comes before the first pass, so it posts its own receives as well
    yield from joined(*receives[:1])
    for stage, following in zip(stages, [*receives[1:], []], strict=True):
        yield from following
        for op in stage:
            yield op
            if message := message_of(op, chain, sends=True):
                yield message


def message_of(op: Op, chain: Chain, sends: bool) -> Op | None:
    """Returns the message that a unit's pass sends or receives, or None."""
    if op.kind in (Kind.W, Kind.RECOMPUTE):
        return None
    is_forward = op.kind is Kind.F
    away = +1 if is_forward == sends else -1
    _, boundary = chain.neighbours(op.at, away)
    if boundary == NONE:
        return None
    if is_forward:
        kind = Kind.SEND_F if sends else Kind.RECV_F
    else:
        kind = Kind.SEND_B if sends else Kind.RECV_B
    peer = chain.place[boundary if away > 0 else boundary - 1]
    return Op(kind, op.micro, op.stage, boundary, peer=peer)
