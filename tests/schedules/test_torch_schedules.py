"""Schedules beside those of PyTorch, pass by pass."""

import os
from typing import Any

import pytest

from nnmpi.schedules.op import Kind
from nnmpi.schedules.pipeline import SCHEDULES

NO_TORCH = "PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 5, 8, 12, 16, 17, 32)]
Pass = tuple[Kind, int, int]


@pytest.fixture(scope="module")
def torch_schedules() -> Any:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return pytest.importorskip("torch.distributed.pipelining.schedules", reason=NO_TORCH)


def of_torch(torch_schedules: Any, name: str, p: int, m: int, stages: int) -> list[list[Pass]]:
    """The passes of each rank that a schedule of PyTorch lists; it is made without stages, which
    would need processes."""
    kind = getattr(torch_schedules, name)
    made = kind.__new__(kind)
    made._n_microbatches, made.pp_group_size, made.rank = m, p, 0
    made._num_stages = made.num_stages = p * stages
    made.n_local_stages = stages
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    if hasattr(kind, "_calculate_single_rank_operations"):
        ranks = [made._calculate_single_rank_operations(r) for r in range(p)]
    else:
        order = made._get_pipeline_order()
        ranks = [order[r] for r in range(p)]
    return [[*_passes(actions)] for actions in ranks]


def _passes(actions: Any) -> Any:
    """Yields the passes among actions, of pairs that may overlap both."""
    for action in filter(None, actions):
        for one in action.sub_actions or (action,):
            if one.computation_type.value in "FBIW":
                kind = Kind(one.computation_type.value)
                yield kind, one.microbatch_index, one.stage_index


def of_nnmpi(name: str, p: int, m: int, stages: int) -> list[list[Pass]]:
    return [[op[:3] for op in ops] for ops in SCHEDULES[name].compute(p, m, stages)]


CASES = {
    "interleaved": ("ScheduleInterleaved1F1B", 2, lambda p, m: p > 1 and m % p == 0),
    "zb-v": ("ScheduleZBVZeroBubble", 2, lambda p, m: True),
    "dualpipe-v": ("ScheduleDualPipeV", 2, lambda p, m: m >= 2 * p),
}


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_passes_of_pytorch_in_their_order(torch_schedules: Any, name: str) -> None:
    theirs, stages, holds = CASES[name]
    sizes = [(p, m) for p, m in SIZES if holds(p, m)]
    assert len(sizes) > 10
    for p, m in sizes:
        wanted = of_torch(torch_schedules, theirs, p, m, stages)
        assert of_nnmpi(name, p, m, stages) == wanted, (p, m)


def test_gpipe_has_the_same_passes_and_goes_back_the_other_way(torch_schedules: Any) -> None:
    for p, m in SIZES:
        for ours, theirs in zip(
            of_nnmpi("gpipe", p, m, 1),
            of_torch(torch_schedules, "ScheduleGPipe", p, m, 1),
            strict=True,
        ):
            assert (ours[:m], ours[:m:-1], ours[m]) == (theirs[:m], theirs[m:-1], theirs[-1])


def test_1f1b_differs_on_the_last_rank_where_pytorch_counts_from_1(torch_schedules: Any) -> None:
    """Its list begins with F1 B0 there; its steps follow another description, which does not."""
    for p, m in SIZES:
        if m >= p > 1:
            ours = of_nnmpi("1f1b", p, m, 1)
            theirs = of_torch(torch_schedules, "Schedule1F1B", p, m, 1)
            assert ours[:-1] == theirs[:-1], (p, m)
            assert theirs[-1] == [(k, i + (k is Kind.F), s) for k, i, s in ours[-1]]
