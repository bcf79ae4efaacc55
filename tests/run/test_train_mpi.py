"""`mpirun -n N python -m nnmpi.train`, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpijob import Ended, descendants, environment, kill, launcher, run

import nnmpi

TRAIN = ("-m", "nnmpi.train")
SMALL = ("--model", "iris-mlp", "--data", "iris", "--batch-size", "50", "--epochs", "3")
MPICH = os.environ.get("NNMPI_TEST_MPICH", "")
MPIS = [
    pytest.param(sys.executable, id="this MPI"),
    pytest.param(
        MPICH,
        id="MPICH",
        marks=pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH"),
    ),
]


def events(told: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.out.splitlines()]


def ours(text: str) -> list[str]:
    """The lines that do not come from the launcher."""
    return [line for line in text.splitlines() if "nnmpi" in line]


@pytest.mark.parametrize("python", MPIS)
def test_ranks_fill_dp_and_one_of_them_tells(python: str, tmp_path: Path) -> None:
    log, saved = tmp_path / "run.jsonl", tmp_path / "m.safetensors"
    whole = ("--dtype", "float64", "--log", str(log), "--save", str(saved))
    told = run(3, *TRAIN, *SMALL, *whole, python=python)
    assert told.status == 0, told
    assert [e["event"] for e in events(told)] == ["start", "epoch", "epoch", "epoch", "done"]
    assert log.read_text() == told.out
    done = events(told)[-1]
    assert (done["ranks"], done["layout"]) == (3, {"dp": 3, "pp": 1, "tp": 1})
    wanted = {"loss", "accuracy", "epochs", "steps", "seconds", "samples_per_second"}
    assert wanted <= done.keys()
    alone = tmp_path / "one.safetensors"
    plain = subprocess.run(
        [python, *TRAIN, *SMALL, "--dtype", "float64", "--save", alone, "--quiet"],
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(plain.stdout)["accuracy"] == done["accuracy"]
    mine, theirs = nnmpi.load(saved), nnmpi.load(alone)
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-10, atol=1e-12)


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a flag": (("--epoch", "3"), "unrecognized arguments: --epoch"),
    "a number": (("--lr", "-1"), "lr -1.0 must be a number above 0"),
    "ranks": (("--dp", "4"), "dp 4 does not fit 2 ranks: start it with mpirun -n 4, or leave dp"),
    "a file": (("--load", "nowhere.safetensors"), "cannot load nowhere.safetensors"),
    "a folder": (("--save", "no/where.safetensors"), "there is no directory no; make it first"),
    "a log": (("--log", "no/where.jsonl"), "cannot write log no/where.jsonl"),
    "a config": (("--config", "no.toml"), "no.toml: No such file"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_unusable_arguments_give_one_line_on_one_rank(case: Any) -> None:
    more, words = case
    told = run(2, *TRAIN, *SMALL, *more)
    assert told.status == 2, told
    assert told.out == ""
    assert len(ours(told.err)) == 1, told.err
    assert words in told.err


def test_a_layout_that_cannot_be_built_gives_one_line() -> None:
    told = run(2, *TRAIN, *SMALL, "--progress", "thread", env={"MPI4PY_RC_THREAD_LEVEL": "single"})
    assert told.status == 2, told
    assert len(ours(told.err)) == 1, told.err
    assert "use --progress poll" in told.err


def test_help_is_printed_once() -> None:
    told = run(2, *TRAIN, "--help")
    assert told.status == 0
    assert told.out.count("usage:") == 1


def test_a_file_that_one_rank_cannot_read_ends_all(tmp_path: Path) -> None:
    """Each rank reads the data itself, here by a name of its own."""
    script = tmp_path / "job.py"
    script.write_text(ONE_LACKS_ITS_FILE)
    told = run(3, script)
    assert told.status == 2, told
    assert len(ours(told.err)) == 1, told.err
    assert "nowhere-1.npz" in told.err


ONE_LACKS_ITS_FILE = """
import sys
import numpy as np
from nnmpi.comm import world
from nnmpi.train import main
name = f"nowhere-{world().rank}.npz"
if world().rank != 1:
    name = f"{sys.argv[0]}.{world().rank}.npz"
    np.savez(name, x=np.eye(4, dtype="float32"), y=np.arange(4))
sys.exit(main(["--model", "mlp:4-4", "--data", name, "--epochs", "1"]))
"""


def test_what_fails_on_one_rank_alone_ends_all(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(ONE_FAILS)
    more = ("--model", "fails:build", "--data", "iris")
    told = run(3, *TRAIN, *more, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"})
    assert told.status not in (0, None), told
    assert "rank 1: on the second step" in told.err


ONE_FAILS = """
from nnmpi import nn
from nnmpi.comm import world

class Fails(nn.Module):
    def __init__(self):
        self.inner, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += self.training
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
    "Takes the folder away into which the model is to be saved."
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        if self.training and world().rank == 0 and os.path.exists("folder"):
            os.rmdir("folder")
        return super().forward(x)
"""


def of_package(folder: Path, ranks: int, name: str, *more: str) -> Ended:
    """A run of one of these models, in a folder of its own."""
    (folder / "models_of_ranks.py").write_text(PACKAGE)
    script = folder / "job.py"
    script.write_text(
        "import os, sys\n"
        "os.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
        "from nnmpi.train import main\n"
        "sys.exit(main())\n"
    )
    model = ("--data", "iris", "--model", f"models_of_ranks:{name}", "--epochs", "2")
    return run(ranks, script, *model, *more)


def test_a_difference_that_verify_finds_gives_one_line(tmp_path: Path) -> None:
    told = of_package(tmp_path, 2, "Partial", "--verify", "--save", "m.safetensors")
    assert told.status == 1, told
    (line,) = ours(told.err)
    assert line.startswith("nnmpi.train: step 1: loss of the layout differ from those of one rank")
    assert [e["event"] for e in events(told)] == ["start", "verify", "failed"]
    assert not (tmp_path / "m.safetensors").exists()


def test_a_model_that_cannot_be_saved_gives_one_line(tmp_path: Path) -> None:
    """In the end, when the other ranks have nothing left to wait for."""
    (tmp_path / "folder").mkdir()
    told = of_package(tmp_path, 2, "Leaves", "--save", "folder/m.safetensors")
    assert told.status == 1, told
    (line,) = ours(told.err)
    assert line.startswith("nnmpi.train: cannot save folder/m.safetensors: ")
    assert events(told)[-1]["event"] == "failed"


def test_a_dry_run_is_told_once() -> None:
    told = run(3, *TRAIN, *SMALL, "--dry-run")
    assert (told.status, ours(told.err)) == (0, []), told
    (event,) = events(told)
    assert event["event"] == "dry-run"
    assert event["gradient_bytes"] == 4 * event["parameter_bytes"]


def test_options_that_differ_give_one_line(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ANOTHER_RATE)
    told = run(3, script, *SMALL)
    assert told.status == 2, told
    (line,) = ours(told.err)
    assert line.startswith("nnmpi.train: rank 1 differs from rank 0 in lr (0.01); start all ranks")


ANOTHER_RATE = """
import sys
from nnmpi.comm import world
from nnmpi.train import main
sys.exit(main([*sys.argv[1:], "--lr", "0.01" if world().rank == 1 else "0.02"]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """A run of three ranks that would take long; ended whatever happens."""
    log = tmp_path / "run.jsonl"
    saved = tmp_path / "m.safetensors"
    more = ("--epochs", "100000", "--log", str(log), "--save", str(saved))
    job = subprocess.Popen(
        [*launcher(sys.executable), "-n", "3", sys.executable, *TRAIN, *SMALL, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({}),
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while not (log.exists() and '"epoch": 3' in log.read_text()):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < until, "no epoch in a minute"
            time.sleep(0.05)
        yield job, saved
    finally:
        kill(job)
        job.communicate()


def ranks_of(job: subprocess.Popen[str]) -> list[int]:
    """Its Python processes."""
    found = []
    for process in descendants(job.pid):
        command = ["ps", "-o", "args=", "-p", str(process)]
        told = subprocess.run(command, check=False, capture_output=True)
        if b"nnmpi.train" in told.stdout:
            found.append(process)
    return found


def test_a_killed_rank_ends_the_job(job: Any) -> None:
    process, _ = job
    ranks = ranks_of(process)
    if len(ranks) != 3:
        pytest.skip(f"found {len(ranks)} of 3 ranks among the processes of mpirun")
    os.kill(ranks[1], signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert '"done"' not in out
    assert err.strip()


def test_sigusr1_stops_all_ranks_and_saves(job: Any) -> None:
    process, saved = job
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out[-500:], err)
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert nnmpi.load(saved)
