"""What a rank keeps of activations in a step, pass by pass of its program, in bytes."""

from collections.abc import Iterator, Sequence
from itertools import product

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.memory import entering, left_for_weights, of_stage
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.schedules.op import Kind, Op


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps at a time in a step over a batch of so many samples."""
    sizes = micro_batches(a, rank, batch)
    if a.residences is not None:
        beside = entering(a, 0, max(sizes), rank) - a.residences.state
        return round(a.residences.memory + beside)
    return round(max((now for _, _, now in kept_before(a, rank, sizes)), default=0.0))


def kept_before(a: Arrangement, rank: int, sizes: Sequence[int]) -> Iterator[tuple[Op, int, float]]:
    """The passes of a step over micro-batches of so many samples; each with its samples and the
    bytes that the rank keeps when it begins."""
    if not a.steps_together:  # as many batches are on their way as there are stages
        sizes = [*sizes] * len(a.stages)
    program = [op for op in ops(a, rank, len(sizes)) if op.micro >= 0]
    again = {(op.stage, op.micro) for op in program if op.kind is Kind.RECOMPUTE}
    is_split = any(op.kind is Kind.I for op in program)
    each = [*product(a.model_on(rank).stages, {*sizes})]
    whole = {at: of_stage(a, *at, rank) for at in each}
    input_alone = {at: entering(a, *at, rank) for at in each}
    left = {at: left_for_weights(a, *at, rank) for at in each if is_split}
    now = 0.0
    for op in program:
        at = op.stage, sizes[op.micro]
        yield op, sizes[op.micro], now
        if op.kind is Kind.F:
            now += input_alone[at] if (op.stage, op.micro) in again else whole[at]
        elif op.kind is Kind.RECOMPUTE:
            now += whole[at] - input_alone[at]
        elif op.kind is Kind.I:
            now += left[at] - whole[at]
        elif op.kind in (Kind.B, Kind.W):
            now -= left[at] if op.kind is Kind.W else whole[at]
