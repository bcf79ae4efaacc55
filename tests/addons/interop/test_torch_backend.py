"""The backend "nnmpi" of torch.distributed: `with_torch.py` says what holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, run
from helpers.ops.oracle import needs_torch

pytestmark = needs_torch

PROGRAM = Path(__file__).with_name("with_torch.py")
CHECKS = {
    *("collectives", "messages_and_objects", "groups", "orders", "late", "refusals"),
    *("replicas", "shards", "algorithms", "no_copies", "profiles"),
}


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_pytorch_runs_on_it_as_on_gloo(ranks: int) -> None:
    ended = run(ranks, PROGRAM)
    assert ended.status == 0, ended.err[-3000:]
    assert {*ended.out.splitlines()} == CHECKS


def test_one_process_needs_no_launcher() -> None:
    outcome = subprocess.run(
        [sys.executable, PROGRAM], check=False, capture_output=True, text=True, env=environment({})
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert {*outcome.stdout.splitlines()} == CHECKS


def test_processes_of_torchrun_are_refused() -> None:
    """MPI knows nothing of them: each would train alone."""
    outcome = subprocess.run(
        [sys.executable, "-c", "import nnmpi.torch"],
        check=False,
        capture_output=True,
        text=True,
        env=environment({"RANK": "1", "WORLD_SIZE": "2"}),
    )
    assert outcome.returncode == 1
    assert "WORLD_SIZE is 2, but no launcher" in outcome.stderr


FAILING: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "differing_calls": (
        {"NNMPI_DEBUG": "collectives"},
        ("MismatchError", "all_reduce of 4 float32"),
    ),
    "hang": (
        {"NNMPI_TIMEOUT": "4"},
        ("NNMPI_TIMEOUT", "all_reduce", "with_torch.py", "time.sleep"),
    ),
    "leaves": ({}, ("rank 1", "all_reduce")),
}


@pytest.mark.parametrize("check", FAILING)
def test_a_rank_that_fails_ends_the_job_with_a_report(check: str) -> None:
    settings, words = FAILING[check]
    ended = run(2, PROGRAM, check, env=settings, patient="NNMPI_TIMEOUT" in settings)
    assert ended.status == 1
    assert not [word for word in words if word not in ended.err], ended.err


def test_the_benchmark_times_both_backends(tmp_path: Path) -> None:
    path, flags = tmp_path / "rows.json", ("--rounds", "1", "--seconds", "0.001")
    script = ROOT / "benchmarks" / "torch_backend.py"
    ended = run(2, script, *flags, "--sizes", "1024", "--json", path)
    assert ended.status == 0, ended.err
    rows = json.loads(path.read_text())
    assert {(row["case"], row["backend"]) for row in rows} == {
        (case, backend)
        for case in ("1,024 B", "small step", "step")
        for backend in ("nnmpi", "MPI", "gloo")
    }
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in rows)


KILLED = """
import os, signal
import nnmpi.torch, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nnmpi")
model, x = torch.nn.Linear(20, 20), torch.ones(4, 20)
if "{way}" == "replicas":
    model = DistributedDataParallel(model)
for k in range(10_000):
    if k == 5 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "{way}" == "replicas":
        model(x).sum().backward()
    else:
        dist.all_reduce(torch.ones(1000))
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["replicas", "sums"])
def test_others_end_with_a_message_if_a_rank_is_killed(way: str) -> None:
    """Where the launcher lets them: else it ends the job itself."""
    ended = run(2, "-c", KILLED.replace("{way}", way), fault_tolerant=True, timeout=150)
    assert ended.status is not None
    assert "rank 0 of 2: RankLost: lost rank 1" in ended.err
    assert "Segmentation fault" not in ended.err
