"""`mpirun -n N python -m nnmpi.train`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mpijob import MPIS, Ended, descendants, environment, kill, launcher, run
from helpers.terminals import seen, terminal

import nnmpi
from nnmpi.train import main

TRAIN = ("-m", "nnmpi.train")
JSON = (*TRAIN, "--json")
SMALL = ("--model", "iris-mlp", "--data", "iris", "--batch-size", "50", "--epochs", "3")


def events(completed: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in completed.out.splitlines()]


def ours(text: str) -> list[str]:
    """The lines that are not the launcher's."""
    return [line for line in text.splitlines() if "nnmpi" in line]


@pytest.mark.parametrize("python", MPIS)
def test_all_ranks_train_and_the_first_prints(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, saved = tmp_path / "run.jsonl", tmp_path / "m.safetensors"
    whole = ("--dtype", "float64", "--log", str(log), "--save", str(saved))
    completed = run(3, *JSON, *SMALL, *whole, python=python)
    assert completed.status == 0, completed
    assert [e["event"] for e in events(completed)] == ["start", "epoch", "epoch", "epoch", "done"]
    assert log.read_text() == completed.out
    done = events(completed)[-1]
    assert (done["ranks"], done["layout"]) == (3, {"dp": 3, "cp": 1, "pp": 1, "tp": 1})
    wanted = {"loss", "accuracy", "epochs", "steps", "seconds", "samples_per_second"}
    assert wanted <= done.keys()
    alone = tmp_path / "one.safetensors"
    assert main([*JSON[2:], *SMALL, "--dtype", "float64", "--save", str(alone), "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == done["accuracy"]
    mine, theirs = nnmpi.load(saved), nnmpi.load(alone)
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-10, atol=1e-12)


def test_the_terminal_of_the_launcher_gets_a_bar_and_text(tmp_path: Path) -> None:
    """Past the launcher, which forwards whole lines only."""
    (tmp_path / "slow.py").write_text(SLOW)
    options = ("--model", "slow:Slow", "--data", "iris", "--batch-size", "10", "--epochs", "2")
    ours, theirs = terminal()
    try:
        with subprocess.Popen(
            [*launcher(sys.executable), "-n", "2", sys.executable, *TRAIN, *options],
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env=environment({}),
        ) as job:
            os.close(theirs)
            before = seen(ours, 200, until=rb"\d%\|[^\r\n]*\| \d+/24 \[")
            assert "epoch" not in before
            (tmp_path / "seen").touch()
            text = before + seen(ours, 200)
            assert job.wait(60) == 0, text
    finally:
        os.close(ours)
    assert "{" not in text
    for sentence in ("slow:Slow ", "epoch   1 ", "epoch   2 ", "done: accuracy "):
        assert re.search(rf"(^|[\r\n]){sentence}", text), text


SLOW = """
import time
from pathlib import Path
from nnmpi import nn

class Slow(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        while self.steps == 12 and not Path("seen").exists():
            time.sleep(0.01)
        time.sleep(0.04 * (self.steps < 12))
        return super().forward(x)
"""


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a flag": (("--epoch", "3"), "unrecognized arguments: --epoch 3; did you mean --epochs?"),
    "a log": (("--log", "no/where.jsonl"), "cannot write log no/where.jsonl"),
    "ranks": (("--dp", "4"), "dp 4 does not fit 2 ranks: start it with mpirun -n 4, or leave dp"),
    "a file": (("--load", "nowhere.safetensors"), "cannot load nowhere.safetensors"),
}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param(*case, id=name, marks=() if name == "a log" else pytest.mark.long)
        for name, case in WRONG.items()
    ],
)
def test_unusable_arguments_are_a_one_line_error_of_one_rank(
    more: tuple[str, ...], words: str
) -> None:
    completed = run(2, *TRAIN, *SMALL, *more)
    assert completed.status == 2, completed
    assert completed.out == ""
    assert len(completed.err.splitlines()) == 1, completed.err  # the launcher says nothing
    assert words in completed.err


def test_a_layout_that_cannot_be_built_is_a_one_line_error() -> None:
    completed = run(
        2, *TRAIN, *SMALL, "--progress", "thread", env={"MPI4PY_RC_THREAD_LEVEL": "single"}
    )
    assert completed.status == 2, completed
    assert len(ours(completed.err)) == 1, completed.err
    assert "use --progress poll" in completed.err


def test_an_unusable_environment_is_a_one_line_error_of_one_rank() -> None:
    completed = run(2, *TRAIN, *SMALL, env={"NNMPI_DEBUG": "1"})
    assert completed.status == 2, completed
    line = "nnmpi.train: NNMPI_DEBUG is '1': set it to 'collectives' or not at all"
    assert (completed.out, ours(completed.err)) == ("", [line])


def test_help_is_printed_once() -> None:
    completed = run(2, *TRAIN, "--help")
    assert completed.status == 0
    assert completed.out.count("usage:") == 1


def test_a_file_that_one_rank_cannot_read_ends_all_ranks(tmp_path: Path) -> None:
    """Each rank reads its own file; that of rank 1 is missing."""
    script = tmp_path / "job.py"
    script.write_text(ONE_LACKS_ITS_FILE)
    completed = run(2, script)
    assert completed.status == 2, completed
    assert len(ours(completed.err)) == 1, completed.err
    assert "nowhere-1.npz" in completed.err


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


def of_package(folder: Path, ranks: int, name: str, *more: str) -> Ended:
    """A run of one of the models of PACKAGE, in a new directory."""
    (folder / "models_of_ranks.py").write_text(PACKAGE)
    script = folder / "job.py"
    script.write_text(
        "import os, sys\n"
        "os.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
        "from nnmpi.train import main\n"
        "sys.exit(main())\n"
    )
    model = ("--json", "--data", "iris", "--model", f"models_of_ranks:{name}", "--epochs", "2")
    return run(ranks, script, *model, *more)


def test_a_difference_that_verify_finds_is_a_one_line_error(tmp_path: Path) -> None:
    completed = of_package(tmp_path, 2, "Partial", "--verify", "--save", "m.safetensors")
    assert completed.status == 1, completed
    (line,) = ours(completed.err)
    assert line.startswith("nnmpi.train: step 1: loss of the layout differ from those of one rank")
    assert [e["event"] for e in events(completed)] == ["start", "verify", "failed"]
    assert not (tmp_path / "m.safetensors").exists()


def test_a_model_that_cannot_be_saved_is_a_one_line_error(tmp_path: Path) -> None:
    """The directory of --save is removed during the run."""
    (tmp_path / "folder").mkdir()
    completed = of_package(tmp_path, 2, "Leaves", "--save", "folder/m.safetensors")
    assert completed.status == 1, completed
    (line,) = ours(completed.err)
    assert line.startswith("nnmpi.train: cannot save folder/m.safetensors: ")
    assert events(completed)[-1]["event"] == "failed"


def test_a_dry_run_is_printed_once() -> None:
    completed = run(2, *JSON, *SMALL, "--dry-run")
    assert (completed.status, ours(completed.err)) == (0, []), completed
    (event,) = events(completed)
    assert event["event"] == "dry-run"
    first, others = event["kinds"]  # memory of the node counts on its first rank
    assert (first["ranks"], others["ranks"]) == ([0], [1])
    assert (first["parameters_bytes"], others["parameters_bytes"]) == (4 * event["parameters"], 0)


def test_options_that_differ_are_a_one_line_error(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ANOTHER_RATE)
    completed = run(2, script, *SMALL)
    assert completed.status == 2, completed
    (line,) = ours(completed.err)
    assert line.startswith("nnmpi.train: rank 1 differs from rank 0 in lr (0.01); start all ranks")


ANOTHER_RATE = """
import sys
from nnmpi.comm import world
from nnmpi.train import main
sys.exit(main([*sys.argv[1:], "--lr", "0.01" if world().rank == 1 else "0.02"]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """A long run of three ranks, which is killed after the test."""
    log = tmp_path / "run.jsonl"
    saved = tmp_path / "m.safetensors"
    more = ("--epochs", "100000", "--log", str(log), "--save", str(saved))
    job = subprocess.Popen(
        [*launcher(sys.executable), "-n", "3", sys.executable, *JSON, *SMALL, *more],
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
    """The processes of its ranks."""
    found = []
    for process in descendants(job.pid):
        command = ["ps", "-ww", "-o", "args=", "-p", str(process)]  # whatever COLUMNS says
        completed = subprocess.run(command, check=False, capture_output=True)
        if b"nnmpi.train" in completed.stdout:
            found.append(process)
    return found


def test_a_killed_rank_ends_the_job(job: Any) -> None:
    process, _ = job
    ranks = ranks_of(process)
    if len(ranks) != 3:
        pytest.skip(f"found {len(ranks)} of 3 ranks among the processes of mpirun")
    os.kill(ranks[1], signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode != 0
    assert '"done"' not in out
    assert err.strip()


def test_a_rank_that_is_interrupted_twice_ends_the_job(job: Any) -> None:
    """Whatever the others wait for; it may also have stopped already."""
    process, _ = job
    ranks = ranks_of(process)
    if len(ranks) != 3:
        pytest.skip(f"found {len(ranks)} of 3 ranks among the processes of mpirun")
    for _ in range(2):
        with suppress(ProcessLookupError):
            os.kill(ranks[1], signal.SIGINT)
        time.sleep(0.01)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err


def test_sigusr1_after_the_end_is_ignored_by_all_ranks() -> None:
    with subprocess.Popen(
        [*launcher(sys.executable), "-n", "2", sys.executable, *JSON, *SMALL, "--quiet"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment({}),
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        assert '"done"' in job.stdout.readline()
        job.send_signal(signal.SIGUSR1)
        job.communicate(timeout=200)
        assert job.returncode == 0


def test_sigusr1_stops_all_ranks_and_saves(job: Any) -> None:
    process, saved = job
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (130, ""), out[-500:]
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert nnmpi.load(saved)
