"""Lists of steps: right ones are proved, and numbers of what does not exist are refused."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.step_lists import groups
from helpers.training.laws_language import VOCABULARY, windows
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits
from helpers.training.transformer_models import Decoder

from nnmpi.addons.planning.rank_lists import whole_stages
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.step_list.step import evaluation, step_list
from nnmpi.schedules.lists.passes import units_of
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import NONE, PASSES, RECEIVES, SENDS, Kind

BATCH, MICRO = 24, 3


MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp:64-128-128-128-128-10", "given": digits},
    "cnn": {"model": "digits-cnn", "given": digits},
    "decoder": {
        "build": partial(Decoder, VOCABULARY, 8, layers=3, heads=2, width=16, dropout=0),
        "given": partial(windows, 56, 8),
    },
}
"""The embedding of the last one is its head too, which is on another rank of a pipeline."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (1, {}),
    "dp 2": (2, {"dp": 2}),
    "dp 3": (3, {"dp": 3}),
    "1f1b": (4, {"dp": 2, "pp": 2, "schedule": "1f1b"}),
    "gpipe": (4, {"dp": 2, "pp": 2, "schedule": "gpipe"}),
    "zb-h1": (6, {"dp": 2, "pp": 3, "schedule": "zb-h1"}),
    "interleaved": (4, {"dp": 2, "pp": 2, "schedule": "interleaved"}),
    "zb-v": (4, {"dp": 2, "pp": 2, "schedule": "zb-v"}),
    "v-half": (4, {"dp": 2, "pp": 2, "schedule": "v-half"}),
    "dualpipe-v": (4, {"dp": 2, "pp": 2, "schedule": "dualpipe-v"}),
    "tp": (4, {"dp": 2, "tp": 2}),
    "3d": (8, {"dp": 2, "pp": 2, "tp": 2}),
}


def arrangements() -> Iterator[Any]:
    for model, built in MODELS.items():
        for name, (ranks, layout) in LAYOUTS.items():
            if model == "cnn" and "pp" in layout:
                continue  # its BatchNorm layers are kept in few stages
            for zero in range(4) if layout.get("dp") else (0,):
                options = {"zero": zero, "micro_batches": MICRO, "bucket_mb": 0.02, **layout}
                yield pytest.param((ranks, built | options), id=f"{model}-{name}-zero {zero}")


@pytest.fixture(params=[*arrangements()])
def a(request: pytest.FixtureRequest) -> Arrangement:
    ranks, options = request.param
    return arranged(Cluster.on_paper(ranks), allreduce="ring", **options)


def lists(a: Arrangement) -> list[StepList]:
    return [step_list(a, rank, MICRO) for rank in range(a.mesh.size)]


# ---- equal to the step that runs


def test_lists_are_proved(a: Arrangement) -> None:
    for tp in range(a.mesh.axes["tp"]):
        prove(groups(a, MICRO, tp))


def test_passes_and_messages_have_the_order_of_whole_stages(a: Arrangement) -> None:
    for rank, step in enumerate(lists(a)):
        of_stages = whole_stages(a, MICRO)[a.mesh.coordinates(rank)["pp"]]
        prove([[each] for each in whole_stages(a, MICRO)])
        wanted = [
            op
            for whole in of_stages.ops
            for op in (units_of([whole], step.chain) if whole.kind in PASSES else [whole])
        ]
        for kinds in (PASSES, *({kind} for kind in SENDS | RECEIVES)):
            assert [op for op in step.ops if op.kind in kinds] == [
                op for op in wanted if op.kind in kinds
            ]


def test_lists_of_evaluations_are_proved(a: Arrangement) -> None:
    steps = [[evaluation(a, rank, MICRO)] for rank in a.mesh.group(0, "pp")]
    prove(steps)
    assert {op.kind for (step,) in steps for op in step.ops} <= OF_EVALUATION
    (last,) = steps[-1]
    short = replace(last, ops=last.ops[:-1], passes=last.passes[:-1])
    if last.ops[-1].kind is Kind.F:
        with pytest.raises(ScheduleError, match=r"no pass needs it|the forward pass of"):
            prove([*steps[:-1], [short]])


OF_EVALUATION = {Kind.F, Kind.SEND_F, Kind.RECV_F, Kind.GATHER, Kind.WAIT}


# ---- the proof


def test_slots_hold_what_is_open_at_a_time(a: Arrangement) -> None:
    for step in lists(a):
        most = 1 if step.scatters else 0
        slots = {op.slot for op in step.ops if op.kind is Kind.OPEN}
        opened, at_most = set[tuple[int, int]](), 0
        for op in step.ops:
            if op.kind is Kind.OPEN:
                opened.add((op.at, op.micro))
            elif op.kind is Kind.SUM:
                opened.discard((op.at, op.micro))
            at_most = max(at_most, len(opened))
        assert len(slots) <= at_most + most


@pytest.mark.parametrize("zero", [0, 3])
def test_a_unit_stage_or_bucket_that_does_not_exist_is_refused(zero: int) -> None:
    options = {"zero": zero, "micro_batches": MICRO, "bucket_mb": 0.02, **LAYOUTS["interleaved"][1]}
    a = arranged(Cluster.on_paper(4), **MODELS["mlp"], **options)
    right = groups(a, MICRO)
    (step, *others), *rest = right
    for k, op in enumerate(step.ops):
        for at in (op.at + 50, -2) if op.at != NONE else ():
            wrong = replace(step, ops=(*step.ops[:k], op._replace(at=at), *step.ops[k + 1 :]))
            with pytest.raises(ScheduleError, match=rf"\App 0, operation {k}, {op.kind.value}{at}"):
                prove([[wrong, *others], *rest])
