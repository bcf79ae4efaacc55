"""--dry-run with tp: which layer is sharded how, and what ranks send for it."""

from typing import Any

import pytest
from pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.dry_run import summary
from nnmpi.run.report import Event, NullReport
from nnmpi.run.report.messages import as_text

TOO_LITTLE = 100  # bytes of shared memory: all sums go by messages
BATCH = 40


def planned(ranks: int, free_memory: int = 1 << 62, build: Any = None, **options: Any) -> Event:
    def rank(comm: Comm) -> Event:
        trainer = Trainer(Config(batch_size=BATCH, **options), build, digits(), comm)
        before = trainer.strategy.entries.sha256()
        found = summary(trainer)
        assert trainer.strategy.entries.sha256() == before
        trainer.fit(NullReport())
        return found

    return threads.run(ranks, rank, free_memory=free_memory)[0]


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.LayerNorm(40), nn.Linear(40, 30), nn.Linear(30, 10)
    )


CASES: dict[str, tuple[dict[str, Any], Any, int]] = {
    "mlp": ({"model": "mlp:64-300-200-10"}, None, 200 + 200 + 4),
    "digits-cnn": ({"model": "digits-cnn"}, None, 64 * 16 + 256 + 4),
    "a column that gathers": ({}, normed, 20 + 40 + 10),
}
"""Numbers that one of two ranks sends for a sample: n for a sum of n, n / 2 where n are gathered;
4 for the loss."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_ranks_send_what_the_formula_says(
    case: tuple[dict[str, Any], Any, int], dtype: str
) -> None:
    options, build, numbers = case
    event = planned(2, TOO_LITTLE, build, tp=2, dtype=dtype, **options)
    nbytes = numbers * BATCH * (8 if dtype == "float64" else 4)
    assert event["tensor_bytes"] == event["tensor_bytes_in_messages"] == nbytes


def test_three_ranks_send_what_the_formula_says() -> None:
    event = planned(3, TOO_LITTLE, tp=3, model="mlp:64-300-200-10")
    numbers = 4 / 3 * (200 + 200) + 4 * 2
    assert event["tensor_bytes"] == pytest.approx(numbers * BATCH * 4, abs=1)
    assert event["tensor_bytes_in_messages"] == pytest.approx(numbers * BATCH * 4, abs=20)


def test_the_ranks_of_a_copy_send_for_its_samples() -> None:
    event = planned(4, TOO_LITTLE, tp=2, dp=2, model="mlp:64-300-200-10")
    nbytes = 404 * BATCH // 2 * 4
    assert event["tensor_bytes"] == event["tensor_bytes_in_messages"] == nbytes


def test_a_pipeline_tells_what_its_busiest_rank_sends() -> None:
    event = planned(4, tp=2, pp=2, cut="5", model="mlp:64-300-200-10")
    assert event["tensor_bytes"] == 204 * BATCH * 4  # the last stage; the first sends 200
    assert event["tensor_bytes_in_messages"] is None


def test_through_shared_memory_little_is_sent() -> None:
    event = planned(2, tp=2, model="digits-cnn")
    assert event["tensor_bytes_in_messages"] == 4 * BATCH * 4
    assert event["through_memory"]


def test_the_table_shows_how_each_layer_is_sharded() -> None:
    lines = [
        " ".join(line.split())
        for line in as_text(planned(3, tp=3, model="digits-cnn")).splitlines()
    ]
    for line in (
        "0 Conv2d column 32 1 3 3 10 11 11 none",
        "1 BatchNorm2d channels 32 10 11 11 none",
        "4 Conv2d row 64 32 3 3 10 11 11 all-reduce of the output",
        "5 BatchNorm2d copy 64 all none",
        "10 Linear column 10 256 3 3 4 all-reduce of the gradient of the input",
    ):
        assert line in lines
    assert any(line.startswith("each rank sends") for line in lines)
    assert "on 3 ranks, layers cut over 3 ranks" in lines


def test_without_tp_nothing_is_said() -> None:
    event = planned(1, model="digits-cnn")
    assert not any("tensor" in name or "sharded" in name for name in event)


def test_activations_are_measured_on_ranks_that_are_threads() -> None:
    """They share one trace, so it has what all of them keep."""
    for options in ({"dp": 3}, {"tp": 3}, {"dp": 3, "tp": 2}, {"dp": 3, "zero": 3}):
        ranks = options.get("dp", 1) * options.get("tp", 1)
        event = planned(ranks, model="digits-cnn", **options)
        assert event["activation_bytes"] > 14 * 64 * 4 * 8 * 8  # outputs of 64 x 8 x 8, 14 samples


@pytest.mark.parametrize(("zero", "share"), [(1, 1), (2, 1), (3, 1 / 2)])
def test_with_zero_3_a_rank_has_a_part_of_the_parameters(zero: int, share: float) -> None:
    event = planned(2, model="mlp:64-300-200-10", zero=zero, allreduce="ring")
    assert event["parameter_bytes"] == pytest.approx(4 * event["parameters"] * share, rel=0.01)
    assert f", ZeRO {zero}" in as_text(event)
