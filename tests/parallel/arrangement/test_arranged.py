"""The arrangement of every row of the table of conformance, beside what the built run does."""

from itertools import product
from typing import Any

import pytest
from laws_arrangement import communicators, holds_and_sends_what_is_said
from pipelined import CNN, MLP

from nnmpi.comm import thread_ranks as threads

CASES = {"mlp": MLP, "digits-cnn": CNN}
LAYOUTS: list[dict[str, Any]] = [
    *({"dp": dp, "allreduce": name} for dp, name in product((2, 3, 4), ("shared", "ring", "tree"))),
    *(
        {"dp": d, "zero": z, "allreduce": "ring", "bucket_mb": 0.01}
        for d, z in product((2, 3), (1, 2, 3))
    ),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_run_holds_and_sends_what_is_said(
    layout: dict[str, Any], case: str, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = layout.get("dp", 1) * layout.get("pp", 1) * layout.get("tp", 1)
    options = {**CASES[case], "micro_batches": micro_batches}
    with communicators(monkeypatch) as made:
        threads.run(ranks, holds_and_sends_what_is_said, made, layout, options)
