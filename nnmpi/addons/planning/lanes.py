"""Computes the predicted timeline of a pipeline's step and its memory, for drawings."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise

from nnmpi.addons.planning.list_times import LINK, shares_of
from nnmpi.addons.planning.paper.activations import alive
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.planning.paper.recording import section_bytes
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.rank_lists import list_of_batch
from nnmpi.addons.planning.step_time import step_model
from nnmpi.addons.simulator.clock import carried_out
from nnmpi.addons.simulator.drawing.timeline import Level, Span, Timeline
from nnmpi.options.amounts import amount
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.schedules.op import NONE, PASSES, SENDS, Kind, Op

RANK, BESIDE, SENT, MEMORY = range(4)
ROWS = "computes", "link", "messages", "activations"
"""The rows of each rank in a timeline: passes, links, messages between stages, memory."""

DRAWN_AS = {
    **dict.fromkeys(SENDS, "send"),
    **dict.fromkeys((Kind.FINISH, Kind.TIES, Kind.TERMS), Kind.SUM.value),
    Kind.AGREE: Kind.APPLY.value,
}
"""The kind of span for operations that are drawn as another kind."""

MOST_OPERATIONS = 20_000
"""The largest number of operations that a picture may have."""


def timelines(a: Arrangement, costs: CostModel) -> list[Timeline]:
    """Returns the predicted timeline of a step, in milliseconds, for each rank of one pipeline:
    that of the last replica. Raises ValueError for more than MOST_OPERATIONS operations."""
    model, ranks = step_model(a, costs), a.mesh.group(a.mesh.size - 1, "pp")
    lists = [list_of_batch(a, rank) for rank in ranks]
    if (count := sum(len(step.ops) for step in lists)) > MOST_OPERATIONS:
        raise ValueError(
            f"--list --svg draws at most {MOST_OPERATIONS:,} operations, and this step has "
            f"{count:,}: give fewer --micro-batches, or a larger --bucket-mb"
        )
    spans: list[list[tuple[Op, Span]]] = [[] for _ in ranks]
    for r, op, cost, start, end in carried_out(lists, lambda r, op: model.lists[r].cost(op)):
        row = RANK if cost.lane is None else BESIDE if cost.lane == LINK else SENT
        number = op.at if op.micro == NONE else op.micro
        kind = DRAWN_AS.get(op.kind, op.kind.value)
        spans[r].append((op, Span(row, kind, number, -1, 1e3 * start, 1e3 * end)))
    return [_timeline(a, rank, of_rank) for rank, of_rank in zip(ranks, spans, strict=True)]


def _timeline(a: Arrangement, rank: int, spans: Sequence[tuple[Op, Span]]) -> Timeline:
    levels = [*_levels(a, rank, spans, kept_shares(a, rank))]
    most, between = max(level.value for level in levels), memory(a, rank, a.config.batch_size).total
    drawn = tuple(span for _, span in spans if span.end > span.start)
    return Timeline(
        drawn,
        len(ROWS),
        f"rank {rank}: activations of at most {amount(most)}, beside {amount(between)}",
        "ms",
        ROWS,
        {MEMORY: levels},
    )


def _levels(
    a: Arrangement, rank: int, spans: Sequence[tuple[Op, Span]], shares: Mapping[int, float]
) -> Iterator[Level]:
    """Yields, as rows for a drawing, the bytes of activations that the rank keeps while each unit
    runs, and between passes. A pass adds or frees those of its units one after the other; `shares`
    has the share of each unit in its stage."""
    sizes, clock = micro_batches(a, rank, a.config.batch_size), 0.0
    kept = {(op.kind, op.micro, op.stage): held for op, held, _ in alive(a, rank, sizes)}
    passes = [*_passes_of_stages(spans)]
    starts_with = [_before(kept, of_units[0][0]) for of_units in passes]
    ends_with = [*starts_with[1:], 0]
    for of_units, held, after in zip(passes, starts_with, ends_with, strict=True):
        done = accumulate(shares[op.at] for op, _ in of_units)
        edges = [*(span.start for _, span in of_units), of_units[-1][1].end]
        yield Level(clock, edges[0], held)
        for (op, _), share, (start, end) in zip(of_units, done, pairwise(edges), strict=True):
            # what a unit adds is there while it runs, and so is what it frees
            share -= shares[op.at] * (after < held)
            yield Level(start, end, held + share * (after - held))
        clock = edges[-1]


def _before(kept: Mapping[tuple[Kind, int, int], int], op: Op) -> int:
    """Returns the bytes kept when the pass of `op` begins."""
    where = op.micro, op.stage
    # in a list, all of the backward pass of a stage that gets data is its B
    return kept[op.kind, *where] if (op.kind, *where) in kept else kept[Kind.W, *where]


def _passes_of_stages(
    spans: Sequence[tuple[Op, Span]],
) -> Iterator[Sequence[tuple[Op, Span]]]:
    """Groups spans of units by pass of a stage on a micro-batch."""
    passes = ((op, span) for op, span in spans if op.kind in PASSES)
    for _, run in groupby(passes, lambda row: (row[0].kind, row[0].stage, row[0].micro)):
        yield [*run]


def kept_shares(a: Arrangement, rank: int) -> dict[int, float]:
    """Returns the share of each unit, by number, in the activation bytes of its stage."""
    chain, samples = chain_of(a, rank), max(micro_batches(a, rank, a.config.batch_size))
    shares = dict[int, float]()
    for stage in chain.of_stage:
        starts, nbytes = section_bytes(a, stage, samples, halves=False)
        kept = [part.kept - part.enters for part in nbytes]
        shares |= shares_of(a, chain, stage, starts, kept)
    return shares
