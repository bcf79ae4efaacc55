"""benchmarks/gpu_host.py: the host's time of steps on the null device."""

import json
from pathlib import Path

from helpers.benchfiles import BENCHMARKS
from helpers.device import needs_emulator
from helpers.programs import python


@needs_emulator
def test_a_row_has_both_forms_of_a_step_and_their_ratio(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    done = python(BENCHMARKS / "gpu_host.py", "W1", "--rounds", "10", "--json", rows)
    assert done.status == 0, done.err
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert row["case"] == "W1"
    assert row["ratio"] == row["compiled"] / row["written"] > 0


def test_steps_at_the_end_of_an_epoch_are_not_timed() -> None:
    done = python(BENCHMARKS / "gpu_host.py", "Trainer W1", "--rounds", "85")
    assert done.status == 2
    assert "--rounds 85 leaves an epoch: at most 84" in done.err
