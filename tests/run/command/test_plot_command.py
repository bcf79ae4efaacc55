"""`nnmpi plot`: the picture of a run, and what completion offers."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.commands import Command
from helpers.completion import completed, in_each_shell

from nnmpi.addons.pages.plot import AXES

TRAIN = ["train", "--model", "iris-mlp", "--data", "iris", "--epochs", "1", "--json"]


@pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib is not installed")
def test_a_run_and_its_picture(tmp_path: Path, here: Command) -> None:
    log, out = tmp_path / "run.jsonl", tmp_path / "run.svg"
    run = here(*TRAIN, "--log", str(log))
    assert (run.status, run.err, run.events[-1]["event"]) == (0, "", "done")
    assert here("plot", str(log), "--out", str(out), "--x", "steps") == (0, "", "")
    assert out.read_text().startswith("<?xml")
    assert here("train", "--epochs", "0").status == 2
    assert here("plot", "no.jsonl").status == 2


@in_each_shell
def test_completion_knows_the_axes(shell: str) -> None:
    assert completed("nnmpi plot run.jsonl --x ", shell) == [*AXES]
