"""Checkpoints whose writer is killed, whose disk is full, or whose files are damaged.

What was told as written is found again, with its numbers, unless its files were damaged since; then
the newest that was not. Nothing else is left behind after the next start.
"""

import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fuzzing import GOOD, Fault, Outcome, damaged
from helpers import mpijob
from helpers.training.made_checkpoints import about_run, made, read, wrong

from nnmpi.addons.checkpoints.keep import folder_of
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

KEEP = 2
SIZES = (1000, 1000, 1000, 150_000)  # numbers of a tensor; the last one fills several blocks
LONGEST = 0.1  # seconds after which a writer is killed
MOST_CALLS = 120  # of the system, within some checkpoints
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir")


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    """Killed or full two or three times, then damaged."""
    n, told = int(rng.choice(SIZES)), 0
    for _ in range(int(rng.integers(1, 4))):
        fault = (_killed_in_time, _killed_at_a_call, _full)[rng.integers(3)]
        told = max(told, fault(rng, folder, told, n))
        if (outcome := checked(folder, int(rng.integers(1, 4)), told, n)).fault is not None:
            return outcome._replace(what=f"{fault.__name__}: {outcome.what}")
    return _damaged(rng, folder, n)


def checked(folder: Path, ranks: int, told: int, n: int) -> Outcome:
    """Whether a directory has what was told as written, whole, and after a start nothing else."""
    if (outcome := _found(folder, ranks, told, n)).fault is not None:
        return outcome
    threads.run(ranks, lambda comm: Writer(folder, comm, KEEP).close())
    others = [name for name in os.listdir(folder) if not name.startswith("step-")]
    if others:
        return Outcome(Fault.LOST, f"left: {others}")
    return _found(folder, ranks, told, n)


def _found(folder: Path, ranks: int, least: int, n: int, most: int = sys.maxsize) -> Outcome:
    """Whether so many ranks read one of these steps, as it was."""
    try:
        results = threads.run(ranks, read, folder)
    except ValueError as error:  # none is whole
        return Outcome(Fault.LOST if least else None, f"step {least}: {error}")
    found = results[0][0]
    if found is None:
        return Outcome(Fault.LOST if least else None, f"no checkpoint, step {least} was told")
    if problem := wrong([one for _, one in results if one is not None], n):
        return Outcome(Fault.WRONG, problem)
    if not least <= found.step <= most:
        text = f"step {found.step}, not {least} to {most}; {found.passed_over}"
        return Outcome(Fault.LOST if found.step < least else Fault.WRONG, text)
    return GOOD


# ---- killed


def writes(comm: Comm, folder: Path, first: int, n: int, tell: Callable[[int], object]) -> None:
    """Writes checkpoints without end, and tells of each on the first rank."""
    writer = Writer(folder, comm, KEEP)
    for step in range(first, first + 1000):
        before = writer.start(made(comm, step, n), about_run([np.full(3, step)]))
        if before is not None and not before.problem and comm.rank == 0:
            tell(before.step)


def _killed_in_time(rng: np.random.Generator, folder: Path, told: int, n: int) -> int:
    seconds = float(rng.uniform(0, LONGEST))
    return _killed(folder, told, n, int(rng.integers(1, 4)), lambda child: _later(child, seconds))


def _later(child: int, seconds: float) -> None:
    if child:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)


def _killed_at_a_call(rng: np.random.Generator, folder: Path, told: int, n: int) -> int:
    calls = int(rng.integers(1, MOST_CALLS))
    return _killed(folder, told, n, int(rng.integers(1, 4)), lambda child: _at_call(child, calls))


def _at_call(child: int, calls: int) -> None:
    """Counts the calls of the child that read and write folders."""
    left = calls

    def count(event: str, _: object) -> None:
        nonlocal left
        if event in EVENTS:  # not that of the kill
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    if child == 0:
        sys.addaudithook(count)


def _killed(folder: Path, told: int, n: int, ranks: int, kill: Callable[[int], None]) -> int:
    """The last step that a process has told as written before it was killed.

    `kill` is called with the number of the process, and in it with 0.
    """
    end, start = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
        child = os.fork()
    if child == 0:
        os.close(end)
        try:
            kill(0)
            threads.run(
                ranks, writes, folder, told + 1, n, lambda step: os.write(start, b"%d\n" % step)
            )
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(start)
    kill(child)
    with os.fdopen(end, "rb") as pipe:
        steps = pipe.read().split(b"\n")
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself, with {status}"
    return int(steps[-2]) if len(steps) > 1 else 0


# ---- full


def _full(rng: np.random.Generator, folder: Path, told: int, n: int) -> int:
    """Files may have no more than so many bytes; then they may."""
    ranks, limit = int(rng.integers(1, 4)), int(10 ** rng.uniform(2, 5)) * n // 1000

    def rank(comm: Comm) -> list[bool]:
        writer, found = Writer(folder, comm, KEEP), list[bool]()
        for step in (told + 1, told + 2):
            comm.barrier()
            with _limited(limit if step == told + 1 and comm.rank == 0 else None):
                writer.start(made(comm, step, n), about_run([np.full(3, step)]))
                result = writer.finish()
                found.append(not result.problem)
                comm.barrier()
        writer.close()
        return found

    first, *others = threads.run(ranks, rank)
    assert all(other == first for other in others), "ranks were told other things"
    assert first[1], "it was not written where there was room"
    return told + 2


@contextmanager
def _limited(limit: int | None) -> Iterator[None]:
    """Files of this process have at most so many bytes meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---- damaged


def _damaged(rng: np.random.Generator, folder: Path, n: int) -> Outcome:
    """Files of the newest checkpoint, and perhaps of others, are damaged or missing."""

    def writes_more(comm: Comm) -> None:
        writer = Writer(folder, comm, KEEP + 1)
        for step in (10**6, 10**6 + 1, 10**6 + 2):
            writer.start(made(comm, step, n), about_run([np.full(3, step)]))
        writer.close()

    threads.run(int(rng.integers(1, 4)), writes_more)
    good = 10**6 + 2
    for step in (10**6 + 2, 10**6 + 1)[: rng.integers(1, 3)]:
        files = sorted(folder_of(folder, step).iterdir())
        path = files[rng.integers(len(files))]
        content = path.read_bytes()
        other = damaged(rng, content)
        if rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(other)
        if other == content and path.exists():
            break
        good = step - 1
    return _found(folder, int(rng.integers(1, 4)), good, n, good)


# ---- jobs of MPI

PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
from fuzz_checkpoints import writes
from nnmpi.comm import world
writes(world(), Path(sys.argv[2]), 1, 1000, lambda step: print(step, flush=True))
"""
ENDS = 20.0  # seconds in which all ranks of a job have ended


def mpi_case(rng: np.random.Generator, folder: Path) -> Outcome:
    """A rank, all of them or the launcher is killed, while checkpoints are written."""
    ranks, which = int(rng.integers(2, 4)), ("a rank", "all ranks", "mpirun")[rng.integers(3)]
    paths = os.pathsep.join(str(path) for path in (Path(__file__).parent, mpijob.ROOT / "tests"))
    program = "-c", PROGRAM, paths, str(folder)
    with subprocess.Popen(
        [*mpijob.launcher(sys.executable), "-n", str(ranks), sys.executable, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=mpijob.environment({}),
        start_new_session=True,
    ) as job:
        try:
            lines = [job.stdout.readline()]
            started = [pid for pid in mpijob.descendants(job.pid) if _is_rank(pid)]
            time.sleep(float(rng.uniform(0, 0.3)))
            killed = {"a rank": started[:1], "all ranks": started, "mpirun": [job.pid]}[which]
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            lines += job.communicate(timeout=ENDS)[0].splitlines()
        finally:
            mpijob.kill(job)
    end = time.monotonic() + ENDS
    while any(map(_is_rank, started)) and time.monotonic() < end:
        time.sleep(0.05)
    outcome = checked(folder, int(rng.integers(1, 4)), int(lines[-1]), 1000)
    return outcome._replace(what=f"{which} of {ranks} killed: {outcome.what}")


def _is_rank(pid: int) -> bool:
    try:
        return b"fuzz_checkpoints" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False
