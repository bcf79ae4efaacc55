"""Lists of all ranks of an arrangement, and changes of lists: each that is possible, or at
random."""

import random
from collections.abc import Iterator
from itertools import product

from nnmpi.addons.planning.rank_lists import list_of_batch
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.step import step_list
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import NONE, PASSES, RECEIVES, SENDS, Kind, Op


def groups(a: Arrangement, micro: int | None = None, tp: int = 0) -> list[list[StepList]]:
    """The lists of ranks with a coordinate along tp, by their places along pp and dp; for a number
    of micro-batches, or for those of a batch."""
    at = [a.mesh.coordinates(rank) for rank in range(a.mesh.size)]
    ranks = [rank for rank, where in enumerate(at) if where["tp"] == tp]

    def of_rank(rank: int) -> StepList:
        return list_of_batch(a, rank) if micro is None else step_list(a, rank, micro)

    return [
        [of_rank(rank) for rank in ranks if at[rank]["pp"] == p] for p in range(a.mesh.axes["pp"])
    ]


def prove_lists(a: Arrangement) -> None:
    """Proves the lists of all ranks for a step over a batch."""
    counts = {len(micro_batches(a, rank, a.config.batch_size)) for rank in range(a.mesh.size)}
    for tp, micro in product(range(a.mesh.axes["tp"]), [None] if a.strategy.lists else counts):
        prove(groups(a, micro, tp))


def changed(draw: random.Random, ops: tuple[Op, ...]) -> tuple[str, tuple[Op, ...]]:
    """A list with one change at random, and the kind of the change."""
    new, how = [*ops], draw.choice(("swap", "far", "drop", "double", "later", "order", "slot"))
    i = draw.randrange(len(new))
    if how == "swap":
        j = min(i + 1, len(new) - 1)
        new[i], new[j] = new[j], new[i]
    elif how == "far":
        j = draw.randrange(len(new))
        new[i], new[j] = new[j], new[i]
    elif how == "drop":
        del new[i]
    elif how == "double":
        new.insert(draw.randrange(len(new) + 1), new[i])
    elif how == "slot":
        new[i] = new[i]._replace(slot=new[i].slot + 1)
    else:
        kinds = {Kind.SUM, Kind.GATHER}
        if how == "later":
            kinds |= {Kind.WAIT, Kind.FINISH, *RECEIVES, *SENDS}
        places = [k for k, op in enumerate(new) if op.kind in kinds]
        if len(places) > 1:
            i, j = draw.sample(places, 2)
            if how == "order":
                new[i], new[j] = new[j], new[i]
            else:
                new.insert(min(len(new) - 1, i + 1 + draw.randrange(6)), new.pop(i))
    return how, tuple(new)


FIELDS = ("at", "micro", "slot", "peer", "stage")


def each_change(ops: tuple[Op, ...]) -> Iterator[tuple[str, tuple[Op, ...]]]:
    """All lists with one change, each with its description: an operation is left out, comes twice,
    comes elsewhere, or one of its numbers is another."""
    for i, op in enumerate(ops):
        rest = ops[:i] + ops[i + 1 :]
        yield f"without {op}, number {i}", rest
        for j in range(len(ops)):
            if i != j:
                yield f"{op} from {i} to {j}", (*rest[:j], op, *rest[j:])
            if op.kind not in PASSES or i == j:
                yield f"{op}, number {i}, at {j} too", (*ops[:j], op, *ops[j:])
        for field in FIELDS:
            was = getattr(op, field)
            for number in {was - 1, was + 1, NONE, 0} - {was, NONE - 1}:
                new = op._replace(**{field: number})
                yield f"{field} of {op}, number {i}, {number}", (*ops[:i], new, *ops[i + 1 :])
