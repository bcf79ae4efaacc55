"""benchmarks/scaling.py: its figures, how its jobs end, and that idle ranks sleep."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.benchfiles import BENCHMARKS, Import
from helpers.mpijob import environment, launcher, run

SCRIPT = str(BENCHMARKS / "scaling.py")
TINY = ("--cases", "W1", "--rounds", "2", "--seconds", "0.01")
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_PROC = Path("/proc/self/stat").exists()
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
LONG = 30.0
RANK = f"""
import os, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
from lib import jobs

def steps(case, batch):
    def run(k):
        if case == "fails":
            raise ValueError("no such\\ncase")
        if case == "ends" and sys.argv[2] == "1":
            print("farewell", flush=True)
            os._exit(3)
        if case == "hangs" or case == "ends":
            time.sleep({LONG})
    return run

jobs.serve(Path(sys.argv[1]), int(sys.argv[2]), lambda: None, steps)
"""


def two_ranks(jobs: ModuleType, folder: Path) -> list[object]:
    """Two ranks without MPI."""
    return [jobs.Process([sys.executable, "-c", RANK, str(folder), str(r)], {}) for r in (0, 1)]


def started(jobs: ModuleType, job: Any) -> list[int]:
    """The process ids of both ranks, once both are in `serve`."""
    while len(job.pids()) < 2:
        job.run(jobs.Task("any", 1, 1))
    pids: list[int] = job.pids()
    return pids


def alive(pid: int) -> bool:
    """Whether the process runs. One that has ended may stay in the table, as a zombie."""
    try:
        os.kill(pid, 0)
        return not HAS_PROC or state(pid)[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def state(pid: int) -> list[str]:
    """What /proc says of a process after its name: a letter, such as S for asleep, and numbers."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_job_runs_tasks_and_leaves_nothing_behind(module: Import) -> None:
    jobs = module("lib.jobs")
    with jobs.Job("plain", 2, lambda folder: two_ranks(jobs, folder)) as job:
        assert 0 <= job.run(jobs.Task("any", 1, 5)) < LONG
        assert job.run(jobs.Task("other", 2, 1)) >= 0
        pids = started(jobs, job)
    assert not any(map(alive, pids))
    assert not job.folder.exists()


@pytest.mark.parametrize(
    ("case", "words", "timeout"),
    [
        ("fails", r"plain: rank \d: ValueError: no such case$", LONG),
        ("ends", "plain ended; last output: farewell$", LONG),
        ("hangs", r"plain has not answered within 0\.5 s without any output$", 0.5),
    ],
)
def test_a_job_that_fails_raises_a_one_line_error(
    module: Import, case: str, words: str, timeout: float
) -> None:
    jobs = module("lib.jobs")
    pids: list[int] = []

    def go_wrong() -> None:
        with jobs.Job("plain", 2, lambda folder: two_ranks(jobs, folder)) as job:
            pids.extend(started(jobs, job))
            job.timeout = timeout
            job.run(jobs.Task(case, 1, 1))

    with pytest.raises(jobs.JobError, match=words) as caught:
        go_wrong()
    assert "\n" not in str(caught.value)
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_a_launcher_that_cannot_start_leaves_no_folder(
    module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = module("lib.jobs")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        jobs.Job("none", 1, lambda _: [jobs.Process([str(tmp_path / "nobody")], {})])
    assert not list(tmp_path.iterdir())


def test_ranks_end_with_the_process_that_started_them() -> None:
    """Here it is killed."""
    starter = f"""
import sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from lib import jobs
rank = {RANK!r}
start = lambda f: [jobs.Process([sys.executable, "-c", rank, str(f), str(r)], {{}}) for r in (0, 1)]
job = jobs.Job("plain", 2, start)
while len(job.pids()) < 2:
    job.run(jobs.Task("any", 1, 1))
print(*job.pids(), job.folder, flush=True)
time.sleep({LONG})
"""
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        *words, folder = p.stdout.readline().split()
        p.kill()
    end = time.monotonic() + LONG
    while any(alive(int(pid)) for pid in words) and time.monotonic() < end:
        time.sleep(0.02)
    left = [pid for pid in words if alive(int(pid))]
    shutil.rmtree(folder)
    assert len(words) == 2
    assert not left


@pytest.mark.skipif(not HAS_PROC, reason="needs /proc")
def test_ranks_of_an_idle_mpi_job_sleep(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher(sys.executable)  # skips where there is none
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    subjects, jobs = module("lib.scaling.subjects"), module("lib.jobs")
    subject = subjects.Subject("nnmpi", "nnmpi", "ring", 2)
    with jobs.Job("nnmpi", 2, lambda folder: subjects.processes(subject, folder)) as job:
        assert job.run(jobs.Task("W1", 4, 1)) > 0
        pids, end = job.pids(), time.monotonic() + LONG
        assert len(pids) == 2
        while (used := processor_share(pids)) > 0.2:  # rank 1 may still be in the barrier
            assert time.monotonic() < end, used


def processor_share(pids: list[int]) -> float:
    """The processor time of the busiest process over that which passes, for half a second."""
    before, start = [ticks(pid) for pid in pids], time.monotonic()
    time.sleep(0.5)
    after, seconds = [ticks(pid) for pid in pids], time.monotonic() - start
    used = max(b - a for a, b in zip(before, after, strict=True))
    return used / os.sysconf("SC_CLK_TCK") / seconds


def ticks(pid: int) -> int:
    """The processor time of a process so far."""
    words = state(pid)
    return int(words[11]) + int(words[12])


def test_speedups_are_medians_over_rounds(module: Import) -> None:
    scaling = module("scaling")
    subjects = scaling.subjects_of(2, ["auto"], {"torch", "jax", "mpi4jax"})
    entries = scaling.entries_of("W1", subjects)
    seconds = {"nnmpi": [0.5, 1.0, 9.0], "T+": [1.0, 2.0, 3.0], "DDP T+": [2.0, 4.0, 8.0]}
    seconds |= {"mpi4jax": [1.5, 3.0, 27.0]}
    times = {e: seconds.get(e.subject.name, [7.0, 7.0, 7.0]) for e in entries}
    rows = {(r["subject"], r["scaling"]): r for r in scaling.rows_of("W1", times, {"cores": 2})}
    weak, strong = rows["nnmpi", "weak"], rows["nnmpi", "strong"]
    assert (weak["ranks"], weak["batch_size"], strong["batch_size"]) == (2, 128, 64)
    assert weak["seconds"] == strong["seconds"] == 1.0
    assert weak["samples_per_second"] == 128
    assert (weak["over_one_rank"], strong["over_one_rank"]) == (2.0, 1.0)
    assert (weak["ratio"], weak["against"]) == (4.0, "DDP T+")
    assert rows["nnmpi", "one rank"]["ratio"] == 2.0  # of 2, 2 and 1/3
    assert rows["nnmpi", "one rank"]["against"] == "T+"
    assert rows["DDP T+", "weak"]["over_one_rank"] == 1.0
    assert weak["ratio to mpi4jax"] == 3.0
    assert strong["ratio to JAX"] == 7.0  # of 14, 7 and 7/9
    assert rows["mpi4jax", "weak"]["over_one_rank"] == 14 / 3  # one rank is JAX on one core
    assert "over_one_rank" not in rows["DDP T", "weak"]  # it has no counterpart on one rank
    apart = rows["nnmpi apart", "weak"]
    assert apart["over_one_rank"] == 2 / 7
    assert "ratio" not in apart  # it trains two models, so it is not compared with DDP
    assert ("nnmpi apart", "strong") not in rows


def test_the_hidden_share(module: Import) -> None:
    overlap = module("overlap")
    rounds = np.array([[9.0, 12.0, 8.0], [10.0, 13.0, 9.0], [50.0, 12.0, 8.0]] * 30)
    found = overlap.Overlap(rounds)
    assert found.to_hide == 4.0
    assert found.share == 0.75
    low, high = found.confidence_interval()
    assert low <= 0.75 <= high
    assert overlap.Overlap(np.ones((3, 3))).share is None
    row = overlap.rows_of("W2", found, "auto", 4, {})[0]
    assert row["hidden_share"] == 0.75
    assert row["samples_per_second"] == 4 * 128 / 10


def test_each_subject_has_a_colour(module: Import) -> None:
    plot = module("lib.scaling.plot")
    n = len(plot.COLORS)
    ours = [f"nnmpi {i}" for i in range(n + 1)]
    colors = plot._colors([{"subject": name} for name in (*ours, "T+", "DDP T+", "DDP T", *ours)])
    assert list(colors) == [*ours, "PyTorch T+", "PyTorch T"]
    assert list(colors.values()) == [*plot.COLORS, *plot.COLORS[:2], plot.GREY]


@pytest.mark.long
@pytest.mark.timeout(300)  # up to ten jobs that import PyTorch, JAX or nnmpi
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_every_subject_has_rows_and_the_plot_is_written(tmp_path: Path) -> None:
    launcher(sys.executable)  # skips where there is none
    flags = ["--json", str(tmp_path / "out.json"), "--allreduce", "ring,shared"]
    flags += ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    outcome = command(*TINY, *flags)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "out.json").read_text())
    many = {"nnmpi", "nnmpi shared", "DDP T+", "DDP T"}
    many |= {subject for subject in ("JAX", "mpi4jax") if importlib.util.find_spec(subject.lower())}
    assert {(r["subject"], r["ranks"], r["scaling"]) for r in rows} == {
        ("nnmpi", 1, "one rank"),
        ("T+", 1, "one rank"),
        *(("JAX", 1, "one rank") for _ in many & {"JAX"}),
        ("nnmpi apart", 2, "weak"),
        *((name, 2, scaling) for name in many for scaling in ("weak", "strong")),
    }
    assert all(r["benchmark"] == "scaling" and r["seconds"] > 0 for r in rows)
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_hidden_share_is_measured_under_mpirun(tmp_path: Path) -> None:
    flags = ("--hidden", "--json", str(tmp_path / "out.json"), "--allreduce", "ring")
    outcome = run(2, SCRIPT, *TINY, *flags)
    assert outcome.status == 0, outcome.err
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [r["subject"] for r in rows] == [
        "nnmpi, overlap",
        "nnmpi, no overlap",
        "nnmpi, compute alone",
    ]
    assert {r["scaling"] for r in rows} == {"hidden"}


def command(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *flags],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env=environment({}),
    )
