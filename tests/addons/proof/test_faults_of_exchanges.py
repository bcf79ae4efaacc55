"""Faults of what sums and gathers leave on a rank, and of which elements it updates."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from proved import GPT, on_paper, proved

from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.facts import exchanges
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind

SMALL: dict[str, Any] = {**GPT, "ranks": 2, "dp": 2, "micro_batches": 2, "bucket_mb": 0.01}
ZERO = SMALL | {"zero": 1}
SP: dict[str, Any] = {**GPT, "ranks": 2, "tp": 2, "sequence_parallel": True}
FAULTS: list[tuple[dict[str, Any], Kind, Collective | None, str]] = [
    (SMALL, Kind.SUM, Collective.REDUCE_SCATTER, "by reduce_scatter, which leaves no sum of what"),
    (SP, Kind.TERMS, Collective.ALL_GATHER, "by all_gather, which leaves no sum of what"),
    (ZERO, Kind.AGREE, Collective.ALL_GATHER, "a sum along dp, and is summed along no axis"),
    (ZERO, Kind.GATHER, Collective.ALL_REDUCE, "is made by all_reduce; due is all_gather"),
    (ZERO, Kind.GATHER, None, "has what ranks 0 update, .* is updated by none of them"),
]
"""Options, a kind of operation, what it makes instead, and the message."""


@pytest.mark.parametrize(("options", "kind", "made", "said"), FAULTS)
def test_another_operation_is_refused(
    options: dict[str, Any],
    kind: Kind,
    made: Collective | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proved(on_paper(**options))
    right = exchanges._OF_KIND[kind]
    monkeypatch.setitem(
        exchanges._OF_KIND,  # type: ignore[arg-type]
        kind,
        lambda *of: [(axis, e._replace(operation=made)) for axis, e in right(*of) if made],
    )
    with pytest.raises(ScheduleError, match=said):
        proved(on_paper(**options))


def first_part(self: Arrangement, rank: int) -> Iterator[tuple[int, int]]:
    for bucket in self.model_on(rank).buckets:
        yield bucket.start, bucket.start + (bucket.stop - bucket.start) // 2


def test_replicas_that_update_the_same_part_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrangement, "owned_ranges", first_part)
    with pytest.raises(ScheduleError, match=r"element 0 of .* is updated twice"):
        proved(on_paper(**ZERO))


def test_a_bucket_that_ends_early_is_refused() -> None:
    a = on_paper(**SMALL)
    models = {}
    for at, model in a.rank_models.items():
        first, *others = model.buckets
        models[at] = model._replace(buckets=(first._replace(stop=first.stop - 8), *others))
    with pytest.raises(ScheduleError, match=r"is updated by none of them"):
        proved(dataclasses.replace(a, rank_models=models))
