"""Lists with a change that the proof lets through are carried out, with the bits of the right
list."""

import random
from dataclasses import replace
from typing import Any

import pytest
from helpers.step_lists import changed, groups
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.parallel import executor_strategy
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.step_list.step import step_list
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import as_text

MLP: dict[str, Any] = {"model": "mlp:64-20-18-16-14-10", "bucket_mb": 0.001}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"zero {zero}": (2, {"dp": 2, "zero": zero, "micro_batches": 2}) for zero in range(4)},
    **{
        f"{schedule}, zero {zero}": (
            4,
            {"dp": 2, "pp": 2, "cut": cut, "zero": zero, "schedule": schedule, "micro_batches": 3},
        )
        for zero in range(4)
        for schedule, cut in (("zb-h1", "5"), ("interleaved", "3,5,7"))
    },
}
EACH = 50


def trained(comm: Comm, options: dict[str, Any]) -> tuple[str, float, Arrangement]:
    """The digest and the loss of a short run."""
    config = Config(**MLP, **options, batch_size=24, steps=4, epochs=2, allreduce="ring")
    with Trainer(config, None, digits(), comm) as trainer:
        done = trainer.fit(NullReport())
        return done["parameters_sha256"], done["loss"], trainer.arrangement


@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.one_in(4)
def test_changes_that_are_let_through_change_no_number(
    ranks: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (*wanted, a), *_ = threads.run(ranks, trained, options)
    right, draw = groups(a, options["micro_batches"]), random.Random(0)
    carried_out = 0
    for _ in range(EACH):
        place = draw.randrange(len(right))
        how, ops = changed(draw, right[place][0].ops)
        everywhere = draw.random() < 0.5
        wrong = [
            replace(step, ops=ops) if everywhere or d == 0 else step
            for d, step in enumerate(right[place])
        ]
        lists = [wrong if p == place else row for p, row in enumerate(right)]
        try:
            prove(lists)
        except ScheduleError:
            continue
        by_rank = {rank: lists[p][d] for rank, (p, d) in places(a).items()}

        def list_of(
            a: Arrangement, rank: int, micro: int, by_rank: dict[int, StepList] = by_rank
        ) -> StepList:
            return by_rank[rank] if micro == options["micro_batches"] else step_list(a, rank, micro)

        monkeypatch.setattr(executor_strategy, "step_list", list_of)
        for found in threads.run(ranks, trained, options):
            assert [*found[:2]] == wanted, (how, as_text(ops))
        carried_out += ops != right[place][0].ops
    print(f"{carried_out} of {EACH} carried out")


def places(a: Arrangement) -> dict[int, tuple[int, int]]:
    """By rank: its place along pp and along dp."""
    at = {rank: a.mesh.coordinates(rank) for rank in range(a.mesh.size)}
    return {rank: (where["pp"], where["dp"]) for rank, where in at.items()}
