"""`mpirun -n N python -m nnmpi.train`."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.mpijob import MPIS, Ended, run
from helpers.runs import but_steps

import nnmpi
from nnmpi.train import main

TRAIN = ("-m", "nnmpi.train")
JSON = (*TRAIN, "--json")
SMALL = ("--model", "iris-mlp", "--data", "iris", "--batch-size", "50", "--epochs", "3")


def events(completed: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in completed.out.splitlines()]


@pytest.mark.parametrize("python", MPIS)
def test_all_ranks_train_and_the_first_prints(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, saved = tmp_path / "run.jsonl", tmp_path / "m.safetensors"
    whole = ("--dtype", "float64", "--log", str(log), "--save", str(saved))
    completed = run(3, *JSON, *SMALL, *whole, python=python)
    assert completed.status == 0, completed
    kinds = [e["event"] for e in but_steps(events(completed))]
    assert kinds == ["start", "epoch", "epoch", "epoch", "done"]
    assert log.read_text() == completed.out
    done = events(completed)[-1]
    assert (done["ranks"], done["layout"]["dp"]) == (3, 3)
    assert {done["layout"][axis] for axis in done["layout"].keys() - {"dp"}} == {1}
    wanted = {"loss", "accuracy", "epochs", "steps", "seconds", "samples_per_second"}
    assert wanted <= done.keys()
    alone = tmp_path / "one.safetensors"
    assert main([*JSON[2:], *SMALL, "--dtype", "float64", "--save", str(alone), "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == done["accuracy"]
    mine, theirs = nnmpi.load(saved), nnmpi.load(alone)
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-10, atol=1e-12)


# ---- one job, several commands

COMMANDS = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from nnmpi.comm import world
from nnmpi.train import main

rank = world().rank
found = {}
for name, arguments in json.loads(sys.argv[1])[rank].items():
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
    found[name] = status, out.getvalue(), err.getvalue()
with open(f"ranks.{rank}", "w") as file:
    json.dump(found, file)
"""


class Reported(NamedTuple):
    """What the ranks of a command said together; `statuses` is sorted."""

    statuses: list[int]
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


PARTIAL = "--data iris --model models_of_ranks:Partial --epochs 2 --json --verify --save partial"
LEAVES = "--data iris --model models_of_ranks:Leaves --epochs 2 --json --save folder/m.safetensors"
JOB = {
    "a log": "--log no/where.jsonl",
    "rates": "--lr 0.01{rank}",
    "one file": "--model mlp:4-4 --data rows-{rank}.npz",
    "verify": PARTIAL,
    "save": LEAVES,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reported]:
    """Of each command what two ranks of one job printed."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "models_of_ranks.py").write_text(PACKAGE)
    (folder / "job.py").write_text("import os, sys\nos.chdir(sys.path[0])\n" + COMMANDS)
    (folder / "folder").mkdir()
    np.savez(folder / "rows-0.npz", x=np.eye(4, dtype="float32"), y=np.arange(4))
    given = [{n: [*SMALL, *text.format(rank=r).split()] for n, text in JOB.items()} for r in (0, 1)]
    ended = run(2, folder / "job.py", json.dumps(given))
    assert ended.status == 0, ended
    ranks = [json.loads((folder / f"ranks.{rank}").read_text()) for rank in (0, 1)]
    assert not (folder / "partial").exists()
    found = {}
    for name in JOB:
        statuses, out, err = zip(*(of_rank[name] for of_rank in ranks), strict=True)
        found[name] = Reported(sorted(statuses), "".join(out), "".join(err))
    return found


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("a log", 2, "nnmpi.train: cannot write log no/where.jsonl"),
        ("rates", 2, "nnmpi.train: rank 1 differs from rank 0 in lr (0.011); start all ranks"),
        ("one file", 2, "rows-1.npz"),
        ("verify", 1, "nnmpi.train: step 1: loss of the layout differ from those of one rank"),
        ("save", 1, "nnmpi.train: cannot save folder/m.safetensors: "),
    ],
)
def test_an_error_is_a_line_of_one_rank(
    name: str, status: int, words: str, told: dict[str, Reported]
) -> None:
    (line,) = told[name].err.splitlines()
    assert words in line
    assert told[name].statuses[-1] == status
    if status == 2:
        assert told[name].out == ""
    else:
        assert told[name].events[-1]["event"] == "failed"


def test_an_error_of_one_rank_ends_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(ONE_FAILS)
    more = ("--model", "fails:build", "--data", "iris")
    completed = run(2, *TRAIN, *more, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"})
    assert completed.status not in (0, None), completed
    assert "rank 1: on the second step" in completed.err


ONE_FAILS = """
from nnmpi import nn
from nnmpi.autograd.recording import recording
from nnmpi.comm import world

class Fails(nn.Module):
    def __init__(self):
        self.inner, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += int(self.training and recording.get() is True)  # not in set-up
        if world().rank == 1 and self.calls == 2:
            raise ValueError("on the second step")
        return self.inner(x)

build = Fails
"""


PACKAGE = """
import os
from nnmpi import nn
from nnmpi.comm import world

class Partial(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * world().rank)

class Leaves(nn.Linear):
    "Removes the directory of --save."
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        if self.training and world().rank == 0 and os.path.exists("folder"):
            os.rmdir("folder")
        return super().forward(x)
"""
