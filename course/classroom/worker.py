"""A worker of the grader: runs checks on ranks, and writes to a file what each rank finds.

`python -m classroom.worker FILE` reads a `Job` as JSON. Its ranks are threads, or processes that
mpirun has started. Each rank appends a line of JSON to the results after each case, so whatever a
student's code does to the process, the grader knows where it ended.
"""

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import NamedTuple, NoReturn
from zlib import crc32

import numpy as np

from classroom.adapters import HiddenError, compiled, load, told
from classroom.check import Finding, checks_of
from nnmpi.comm import AbortedError, Comm, thread_ranks, world
from nnmpi.comm.transport.hub import DeadlockError

TICK, STILL = 0.1, 15  # seconds between two looks; looks at which no rank goes on: a hang
HUNG = 3  # the exit status after a hang


class Job(NamedTuple):
    """The work of a worker, as the grader requests it.

    cases       pairs of the number of a check and a number of ranks
    deadline    seconds for a case
    mpi         True: the ranks are processes, and all cases have their number
    """

    assignment: str
    adapters: str
    seed: int
    cases: list[tuple[int, int]]
    results: str
    deadline: float
    mpi: bool


class Row(NamedTuple):
    """A line of the results: what a rank has found in a case, if anything, or where it hangs."""

    case: int
    rank: int
    step: int = -1
    text: str = ""
    hangs: bool = False


class Worker:
    """The ranks of a process that run cases, and the monitor that ends it if they hang."""

    def __init__(self, job: Job) -> None:
        self.job, self.path, self.assignment = job, Path(job.adapters), checks_of(job.assignment)
        self.case, self.began = -1, 0.0
        self.code: CodeType | Exception
        try:  # once, since ranks that are threads cannot parse at the same time
            self.code = compiled(self.path)
        except (HiddenError, SyntaxError, ValueError) as error:
            self.code = error
        self.ranks: dict[int, tuple[Comm, int]] = {}  # that have not ended the case; their threads
        self.failed = set[int]()  # checks

    def run(self) -> None:
        """Runs all cases whose check has not failed before."""
        comm = world(guard=False) if self.job.mpi else None
        self._write(0, Finding(0, ""))  # of case -1: ranks have started
        for case, (check, size) in enumerate(self.job.cases):
            self.case, self.began = case, time.monotonic()
            if comm is not None:
                part = comm.split(0)  # so that messages of a case never match those of another
                assert part is not None
                self._on_rank(part, check)
                part.free()
            elif check not in self.failed:
                with suppress(Exception):  # it is in the results
                    thread_ranks.run(size, self._on_rank, check)
            self.ranks.clear()

    def _on_rank(self, comm: Comm, number: int) -> None:
        check = self.assignment.CHECKS[number]
        self.ranks[comm.rank] = comm, threading.get_ident()
        rng = np.random.default_rng([self.job.seed, crc32(check.name.encode()), comm.size])
        try:
            if isinstance(self.code, Exception):
                raise self.code
            finding = check.run(comm, load(self.code, self.assignment.ALLOWED), rng)
        except BaseException as error:
            self.failed.add(number)
            if not isinstance(error, AbortedError) or isinstance(error, DeadlockError):
                self._write(comm.rank, Finding(comm.rank, told(error, self.path)))
                if self.job.mpi:
                    comm.abort("the check ends here")
            raise
        if finding is not None:
            self.failed.add(number)
        self._write(comm.rank, finding or Finding(comm.rank, ""))
        if not self.job.mpi:
            del self.ranks[comm.rank]

    def _write(self, rank: int, finding: Finding, hangs: bool = False) -> None:
        row = Row(self.case, finding.rank, finding.step, finding.text, hangs)
        with open(self.job.results, "a") as file:
            file.write(json.dumps(row) + "\n")

    def monitor(self) -> NoReturn:
        """Ends the process if all ranks wait, or if a case takes longer than the deadline."""
        still, last = 0, list[object]()
        while True:
            time.sleep(TICK)
            ranks = dict(self.ranks)
            waits = [comm._progress.log.waits for comm, _ in ranks.values()]
            still = still + 1 if waits == last and all(waits) else 0
            last = [*waits]
            is_late = time.monotonic() > self.began + self.job.deadline
            if ranks and (is_late or (still >= STILL and not self.job.mpi)):
                for rank, (comm, thread) in sorted(ranks.items()):
                    self._write(rank, Finding(rank, self._where(comm, thread)), hangs=True)
                if self.job.mpi:
                    time.sleep(TICK * STILL)  # the other processes report too
                    comm.abort("the check hangs")
                os._exit(HUNG)

    def _where(self, comm: Comm, thread: int) -> str:
        waiting = comm._progress.waiting()
        frames = traceback.extract_stack(sys._current_frames().get(thread))
        lines = [f.lineno for f in frames if f.filename == str(self.path)]
        at = f" ({self.path.name}, line {lines[-1]})" if lines else " after its call has returned"
        return f"waits in {waiting[0].text}{at}" if waiting else f"computes{at}"


if __name__ == "__main__":
    worker = Worker(Job(**json.loads(Path(sys.argv[1]).read_text())))
    threading.Thread(target=worker.monitor, daemon=True).start()
    worker.run()
