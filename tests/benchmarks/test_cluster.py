"""scripts/cluster: two hosts that communicate, and that it leaves nothing behind."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "cluster"
NETNS = Path("/var/run/netns")
PATIENCE = 120.0  # seconds; a busy machine takes its time
TALK = """
import json, os, socket, time
from mpi4py import MPI
world = MPI.COMM_WORLD
hosts = world.allgather(socket.gethostname())
groups = world.allgather(world.Split_type(MPI.COMM_TYPE_SHARED).allgather(world.rank))
payload, began = bytearray(2_000_000), time.perf_counter()
if world.rank == 0:
    world.Send(payload, 1)
    world.Recv(payload[:1], 1)
elif world.rank == 1:
    world.Recv(payload, 0)
    world.Send(payload[:1], 0)
took = time.perf_counter() - began
if world.rank == 0:
    seen = {"hosts": hosts, "groups": groups, "took": took, "directory": os.getcwd()}
    print(json.dumps(seen | {"threads": os.environ["OPENBLAS_NUM_THREADS"]}))
"""


class Told(NamedTuple):
    status: int
    out: str
    err: str


def run(*words: str | Path, **options: object) -> Told:
    """Run a command; after a timeout it is terminated, then killed."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Told(process.returncode, out, err)


def cluster(*words: str, **more: str) -> Told:
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    return run(sys.executable, SCRIPT, *words, env=environment | more)


def ours() -> list[str]:
    return [path.name for path in NETNS.glob("nnmpi*")]


def links() -> str:
    return run("ip", "-brief", "link").out


def processes_inside() -> list[str]:
    return [pid for name in ours() for pid in run("ip", "netns", "pids", name).out.split()]


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


@pytest.fixture
def allowed() -> Iterator[None]:
    """Skips if this machine cannot run a cluster, or one is up that is not a test's.

    The names of namespaces are the machine's: tests of other processes wait here.
    """
    if sys.platform != "linux":
        pytest.skip("network namespaces need Linux")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("no ip and tc on PATH")
    if not shutil.which("mpirun") and not (ROOT / ".venv/bin/mpirun").exists():
        pytest.skip("no mpirun on PATH or in .venv/bin")
    with (NETNS.parent / "nnmpi-test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ours():
            pytest.skip("a cluster is up: scripts/cluster down removes it")
        probe = run("ip", "netns", "add", "nnmpi-probe")
        run("ip", "netns", "delete", "nnmpi-probe")
        if probe.status:
            pytest.skip(f"network namespaces are not allowed here: {probe.err.strip()}")
        yield


@pytest.fixture
def clean(allowed: None) -> Iterator[None]:
    """Removes the cluster after the test, and checks that nothing is left."""
    before = links()
    yield
    ended = cluster("down")
    assert (ended, ours(), links()) == (Told(0, "", ""), [], before)


@pytest.fixture
def two(clean: None) -> None:
    ended = cluster("up", "--hosts", "2", "--rate", "100mbit")
    assert ended == Told(0, "2 hosts, 100mbit each way\n", "")


# ---- errors


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "arguments are required: up, run, status or down"),
        (["up", "--hosts", "0"], "'0' is not a number from 1 to 250"),
        (["run", "-n", "4", "python"], "needs a command after --"),
    ],
)
def test_unusable_arguments_are_reported_in_one_line(words: list[str], answer: str) -> None:
    ended = cluster(*words)
    assert (ended.status, ended.out) == (2, "")
    assert re.fullmatch(r"scripts/cluster: .*; see scripts/cluster --help\n", ended.err)
    assert answer in ended.err


# ---- ranks


@pytest.mark.usefixtures("two")
def test_hosts_have_names_and_communicate_at_the_rate() -> None:
    ended = cluster("run", "-n", "4", "--timeout", "45", "--", sys.executable, "-c", TALK)
    assert ended.status == 0, ended.err
    seen = json.loads(ended.out)
    assert seen["hosts"] == ["nnmpi1", "nnmpi2", "nnmpi1", "nnmpi2"]
    assert seen["groups"] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert seen["took"] > 0.1  # 160 ms at this rate, minus the content of the buckets
    assert (seen["directory"], seen["threads"]) == (os.getcwd(), "1")


@pytest.mark.usefixtures("two")
def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    """The ranks ignore SIGINT and SIGTERM, and one of their children leaves the process group."""
    rank = f"trap '' INT TERM; setsid sleep 60 & touch {tmp_path}/$(hostname); sleep 60; sleep 60"
    words = (sys.executable, SCRIPT, "run", "-n", "2", "--", "sh", "-c", rank)
    bystander = subprocess.Popen(["ip", "netns", "exec", "nnmpi1", "sleep", "60"])
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(words, start_new_session=True, stdout=out, stderr=out) as process,
    ):
        try:
            wait_for(lambda: all((tmp_path / f"nnmpi{i}").exists() for i in (1, 2)))
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
            assert processes_inside() == [str(bystander.pid)]
        finally:
            process.kill()
            bystander.kill()
            bystander.wait()
