"""The training command under `mpirun --with-ft ulfm`: ranks are killed by SIGKILL, others go on."""

import json
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, outcome_of, run
from helpers.runs import but_steps

PROGRAM = ROOT / "tests" / "helpers" / "killedtraining.py"
IRIS = ("--model", "iris-mlp", "--data", "iris", "--json")
EPOCHS, STEPS = 5, 2  # of 120 samples in batches of 64


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lost", [[0], [2, 3]], ids=str)
def test_ranks_that_are_killed_after_an_epoch_are_left_out(lost: list[int], tmp_path: Path) -> None:
    """One, or all of a host at once. The log goes on; where the first rank is lost, the next one
    opens it again."""
    log = tmp_path / "log"
    arguments = (*IRIS, "--epochs", str(EPOCHS), "--log", str(log))
    ranks, victims = 2 + len(lost), ",".join(map(str, lost))
    ended = run(ranks, PROGRAM, victims, *arguments, timeout=100, fault_tolerant=True)
    assert (ended.status, ended.err) == (0, "")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    recovered = [one for one in events if one["event"] == "recovered"]
    assert (recovered[-1]["lost"], recovered[-1]["ranks"]) == (lost, 2)
    told = [one for one in but_steps(events) if one["event"] != "recovered"]
    assert [one["event"] for one in told] == ["start", *["epoch"] * EPOCHS, "done"]
    epochs = [(one["epoch"], one["steps"]) for one in told[1:-1]]
    assert epochs == [(n, STEPS * n) for n in range(1, EPOCHS + 1)]
    assert told[-1]["ranks"] == 2


def test_a_spare_rank_takes_the_place_of_one_that_is_killed(tmp_path: Path) -> None:
    """It waits from the start; what the other one had is in the memory of its neighbour."""
    log = tmp_path / "log"
    arguments = (*IRIS, "--epochs", str(EPOCHS), "--log", str(log), "--tp", "2", "--backup", "1")
    arguments += ("--elastic", "--checkpoint-dir", str(tmp_path / "c"))
    ended = run(3, PROGRAM, "1", *arguments, timeout=100, fault_tolerant=True)
    assert (ended.status, ended.err.count("\n")) == (0, 1)
    assert "nnmpi.train: tp 2 on 2 ranks; 1 spare rank" in ended.err
    events = [json.loads(line) for line in log.read_text().splitlines()]
    recovered = [one for one in events if one["event"] == "recovered"]
    assert [(one["lost"], one["ranks"], one["spare"]) for one in recovered] == [([1], 2, 0)]
    kinds = [one["event"] for one in but_steps(events) if one["event"] != "recovered"]
    assert kinds == ["start", *["epoch"] * EPOCHS, "done"]
    assert (events[-1]["ranks"], events[-1]["layout"]["tp"]) == (2, 2)


@pytest.mark.long
def test_the_timeline_of_a_killed_rank_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "killed.svg"
    command = [sys.executable, str(ROOT / "scripts" / "draw_kill.py"), "-o", str(picture)]
    done = outcome_of(command, environment({}), timeout=280)
    assert done.status == 0, done.err
    names = [title.partition(" ,")[0] for title in picture.read_text().split("<title>")[1:]]
    phases = ("interrupted step", "shrink to a smaller Comm", "agree on a version")
    assert [names.count(name) for name in phases] == [3] * len(phases)
    assert names.count("arrange the new layout") == 3
