"""The arrangement of the rows of the table of conformance, beside what the built runs do."""

from functools import partial

import pytest
from helpers.training.conformance import FAMILIES, Row, arranged_rows
from helpers.training.graph_models import GRAPH_MODELS
from helpers.training.laws_arrangement import (
    Options,
    communicators,
    holds_and_sends_what_is_said,
    only_sends_what_is_said,
)
from helpers.training.laws_language import many_tokens

from nnmpi import nn
from nnmpi.comm import thread_ranks as threads

ROWS = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for family in FAMILIES
    for row, is_of_sample in arranged_rows(family)
]


@pytest.mark.parametrize("row", ROWS)
def test_a_run_holds_and_sends_what_is_said(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    with communicators(monkeypatch) as made:
        threads.run(row.ranks, holds_and_sends_what_is_said, made, row.options)


WIDE = {"build": partial(nn.GPT, 2, 5, 80, 17, 6), "given": many_tokens, "sequence_parallel": True}
OTHERS = {
    "long sums of terms": (4, {**WIDE, "dp": 2, "tp": 2}),
    "long sums of terms by shards": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 1, "bucket_mb": 0.05}),
    "terms in 16 bits": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 1, "dtype": "float16"}),
    "terms in 32 bits": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 2, "dtype": "float16"}),
    "reproducible": (3, {"reproducible": True, "slices": 5}),
    "a stage that passes on what it got": (
        3,
        {"build": GRAPH_MODELS["residual cnn"], "pp": 3, "micro_batches": 3, "cut": "3,4"},
    ),
    "reproducible cnn": (4, {"reproducible": True, "model": "digits-cnn"}),
}


@pytest.mark.parametrize(("ranks", "options"), OTHERS.values(), ids=OTHERS)
def test_a_run_of_another_strategy_does_too(
    ranks: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with communicators(monkeypatch) as made:
        threads.run(ranks, holds_and_sends_what_is_said, made, options)


def test_stages_of_pipedream_send_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"pp": 2, "schedule": "pipedream"}
    with communicators(monkeypatch) as made:
        threads.run(2, only_sends_what_is_said, made, options)
