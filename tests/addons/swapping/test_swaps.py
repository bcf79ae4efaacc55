"""Activations and optimizer state on disk: where a list writes and reads them, and what a proof
refuses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from helpers.training.on_paper import arranged, held

from nnmpi.addons.planning.paper.built import built
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.addons.swapping.placement import Disk, Placement, Placements
from nnmpi.addons.swapping.strategy import kind
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.step_list.step import step_list
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import Kind, Op, as_text

KEEP, SWAP, RECOMPUTE = Placement
MOVES = (Kind.WRITE, Kind.READ)
MLP = {"model": "mlp:64-48-40-32-24-10", "optimizer": "adam"}
CNN = {"model": "digits-cnn", "momentum": 0.9}


def on_one_rank(a: Arrangement, *choice: Placement) -> Arrangement:
    """The arrangement whose stages are all on each rank, as --memory has it."""
    every = units(a.graph)
    trained = [k for k, unit in enumerate(every) if unit.is_trained]
    ends = tuple(trained[1 : len(choice)])
    division = divide(a.graph, every, ends, [0] * len(every))
    whole = arrange(a.config, a.cluster, a.graph, a.sharding, division, a.measured)
    names = tuple(map(str, range(len(choice))))
    return replace(whole, strategy=kind(Placements(names, choice, (), 0.0, Disk(1.0, 1.0))))


def listed(*choice: Placement, micro: int = 1) -> StepList:
    a = arranged(Cluster.on_paper(1), model="mlp:64-20-18-16-10", micro_batches=micro)
    return step_list(on_one_rank(a, *choice), 0, micro)


def refused(step: StepList, *ops: Op) -> str:
    with pytest.raises(ScheduleError) as caught:
        prove([[replace(step, ops=ops)]])
    return str(caught.value).rpartition(": ")[2]


def test_units_are_read_in_the_order_in_which_they_are_needed() -> None:
    passes = as_text(listed(SWAP, SWAP, RECOMPUTE, KEEP).ops).partition(" SUM")[0]
    assert passes == (
        "F0.0 WRITE0.0 F1.0 WRITE1.0 F2.0 F3.0 READ1.0 READ0.0 NOTE READ "
        "B3.0 RECOMPUTE2.0 B2.0 B1.0 B0.0"
    )


def test_the_optimizer_state_is_written_again() -> None:
    assert as_text(listed(KEEP, SWAP).ops).endswith("AGREE APPLY WRITE")


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_every_choice_is_proved(micro: int) -> None:
    for choice in product(Placement, repeat=3):
        prove([[listed(*choice, micro=micro)]])


def moves() -> Iterator[tuple[StepList, int]]:
    """Each write and read of some lists."""
    for micro in (1, 2):
        step = listed(SWAP, SWAP, KEEP, SWAP, micro=micro)
        yield from ((step, k) for k, op in enumerate(step.ops) if op.kind in MOVES)


def test_a_move_that_is_missing_or_made_twice_is_refused() -> None:
    for step, k in moves():
        before, after = step.ops[:k], step.ops[k + 1 :]
        assert refused(step, *before, *after)
        assert refused(step, *before, step.ops[k], *step.ops[k:])


def test_the_optimizer_state_is_not_read_and_written_twice() -> None:
    """It would be counted twice, and no pass would find room."""
    step = listed(SWAP, KEEP)
    *others, write = step.ops
    assert refused(step, *others, write, Op(Kind.READ), write) == (
        "the sums of the step are complete"
    )


def test_a_move_elsewhere_is_refused_or_changes_nothing() -> None:
    """Reads may come later, but keep their order; a write is behind its pass, in front of the next
    forward pass, which may need the room."""
    accepted = 0
    for step, k in moves():
        op, others = step.ops[k], [*step.ops[:k], *step.ops[k + 1 :]]
        for place in range(len(others) + 1):
            ops = [*others[:place], op, *others[place:]]
            try:
                prove([[replace(step, ops=(*ops,))]])
            except ScheduleError:
                continue
            accepted += place != k
            assert [op for op in ops if op.kind is Kind.READ] == [
                op for op in step.ops if op.kind is Kind.READ
            ], as_text(ops)
            passes = [op for op in ops if op.kind in (Kind.F, Kind.WRITE)]
            assert passes == [op for op in step.ops if op.kind in (Kind.F, Kind.WRITE)]
    assert accepted > 5


def test_messages_say_what_is_wrong() -> None:
    step = listed(SWAP, SWAP)
    f0, write0, f1, write1, read1, read0, note, read, b1, *rest = step.ops
    head = f0, write0, f1
    assert refused(step, f0, f1, write0, write1, read1, read0, note, read, b1, *rest) == (
        "needs the room of unit 0, which is not written"
    )
    assert refused(step, *head, read0, write1, read1, note, read, b1, *rest) == (
        "writes have to come before"
    )
    assert refused(step, f0, write0, read0, f1, write1, read1, note, read, b1, *rest) == (
        "forward passes have to come before"
    )
    assert refused(step, *head, write1, read0, read1, note, read, b1, *rest) == (
        "other activations are needed earlier"
    )
    assert refused(step, *head, write1, read1, note, read, read0, b1, *rest) == (
        "other activations are needed earlier"
    )
    assert refused(step, *head, write1, read1, read0, note, b1, *rest) == (
        "the optimizer state was not read"
    )
    assert refused(step, *step.ops[:-1]) == "the optimizer state is not written"


@pytest.mark.parametrize("model", [MLP, CNN, CNN | {"zero": 1}])
def test_stages_on_one_rank_send_nothing_to_each_other(model: dict[str, Any]) -> None:
    a = arranged(Cluster.on_paper(2), micro_batches=2, **model)
    cut = on_one_rank(a, KEEP, RECOMPUTE, SWAP)
    assert len(cut.stages) == 3
    for rank in range(2):
        assert traffic(cut, rank, 24) == traffic(a, rank, 24)
        one, whole = (built(each, rank) for each in (cut, a))
        assert held(one.store, one.optimizer) == held(whole.store, whole.optimizer)
