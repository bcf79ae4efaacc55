"""A worker of the grader: runs checks on ranks, and writes to a file what each rank finds.

`python -m classroom.worker FILE` reads a `Job` as JSON. Its ranks are threads, or processes that
mpirun has started. Code of the student runs in another process, which is started when the job and
its results are open here and in no folder any more: it has neither their names nor the key with
which each row is signed.
"""

import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn
from zlib import crc32

import numpy as np

from classroom.check import FaultError, Finding, checks_of
from classroom.compare import any_rank
from classroom.remote import StudentError, StudentProcess, StudentRank
from nnmpi.comm import AbortedError, Comm, MessageLengthError, thread_ranks, world
from nnmpi.comm.transport.hub import DeadlockError

TICK, STILL = 0.1, 15  # seconds between two looks; looks at which no rank goes on: a hang
HUNG = 3  # the exit status after a hang
LOADING = -1  # the number of the case in which adapters.py is loaded


class Job(NamedTuple):
    """The work of a worker, as the grader requests it.

    cases       pairs of the number of a check and a number of ranks
    key         signs rows
    deadline    seconds for a case
    mpi         True: the ranks are processes, and all cases have their number
    """

    assignment: str
    adapters: str
    seed: int
    cases: list[tuple[int, int]]
    results: str
    key: str
    deadline: float
    mpi: bool


class Row(NamedTuple):
    """A line of the results: what a rank has found in a case, if anything, or where it hangs."""

    case: int
    rank: int
    step: int = -1
    text: str = ""
    hangs: bool = False

    def signed(self, key: str) -> bytes:
        """The row as a line, which only who has the key can write."""
        text = json.dumps(self)
        return f"{_signature(key, text)} {text}\n".encode()

    @classmethod
    def read(cls, line: bytes, key: str) -> "Row | None":
        """The row of a line; None if it is not signed by the key."""
        signature, _, text = line.decode(errors="replace").partition(" ")
        is_ours = hmac.compare_digest(signature.encode(), _signature(key, text).encode())
        return cls(*json.loads(text)) if is_ours else None


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


class Worker:
    """The ranks of a process that run cases, and the monitor that ends it if they hang.

    comm       the ranks of mpirun; without it they are threads of this process
    process    runs adapters.py, with as many ranks as this process has at most
    report     gets each row
    """

    def __init__(
        self, job: Job, process: StudentProcess, report: Callable[[Row], None], comm: Comm | None
    ) -> None:
        self.job, self.process, self.report, self.comm = job, process, report, comm
        self.path, self.assignment = Path(job.adapters), checks_of(job.assignment)
        self.source = self.path.read_bytes()
        self.case, self.began = LOADING, time.monotonic()
        self.ranks: dict[int, tuple[Comm | None, StudentRank]] = {}  # that have not ended the case
        self.failed = set[int]()  # checks

    def run(self) -> None:
        """Runs all cases whose check has not failed before, if adapters.py can be loaded at all."""
        if not self._loads():
            return
        for case, (check, size) in enumerate(self.job.cases):
            self.process.revive()
            self.case, self.began = case, time.monotonic()
            if self.comm is not None:
                part = self.comm.split(0)  # so that messages of a case never match another's
                assert part is not None
                self._on_rank(part, check)
                part.free()
            elif check not in self.failed:
                with suppress(Exception):  # it is in the results
                    thread_ranks.run(size, self._on_rank, check)
            self.ranks.clear()

    def _loads(self) -> bool:
        rank, student, wrong = self.comm.rank if self.comm else 0, self.process.ranks[0], None
        self.ranks[rank] = None, student
        try:
            student.load(self.source, self.path, self.assignment.ALLOWED)
        except StudentError as error:
            wrong = Finding(rank, f"{self.path.name} cannot be loaded: {error}")
        self.ranks.clear()
        self._write(wrong or Finding(rank, ""))
        return not (any_rank(self.comm, wrong) if self.comm else wrong)

    def _on_rank(self, comm: Comm, number: int) -> None:
        check = self.assignment.CHECKS[number]
        student = self.process.ranks[0 if self.job.mpi else comm.rank]
        self.ranks[comm.rank] = comm, student
        rng = np.random.default_rng([self.job.seed, crc32(check.name.encode()), comm.size])
        try:
            adapters = student.load(self.source, self.path, self.assignment.ALLOWED)
            finding = check.run(comm, adapters, rng)
        except BaseException as error:
            self.failed.add(number)
            if not isinstance(error, AbortedError) or isinstance(error, DeadlockError):
                self._write(Finding(comm.rank, told(error)))
                if self.job.mpi:
                    self.process.close()
                    comm.abort("the check ends here")
            raise
        if finding is not None:
            self.failed.add(number)
        self._write(finding or Finding(comm.rank, ""))
        if not self.job.mpi:
            del self.ranks[comm.rank]

    def _write(self, finding: Finding, hangs: bool = False) -> None:
        self.report(Row(self.case, finding.rank, finding.step, finding.text, hangs))

    def monitor(self) -> NoReturn:
        """Ends the process if all ranks wait, or if a case takes longer than the deadline."""
        still, last = 0, list[object]()
        while True:
            time.sleep(TICK)
            ranks = dict(self.ranks)
            waits = [comm._progress.log.waits if comm else None for comm, _ in ranks.values()]
            still = still + 1 if waits == last and all(waits) else 0
            last = [*waits]
            is_late = time.monotonic() > self.began + self.job.deadline
            if ranks and (is_late or (still >= STILL and not self.job.mpi)):
                for rank, (comm, student) in sorted(ranks.items()):
                    self._write(Finding(rank, self._where(comm, student)), hangs=True)
                self.report = lambda row: None  # of ranks that this ends
                if self.job.mpi:
                    time.sleep(TICK * STILL)  # the other processes report too
                self.process.kill()
                if self.comm:
                    self.comm.abort("the check hangs")
                os._exit(HUNG)

    def _where(self, comm: Comm | None, student: StudentRank) -> str:
        waiting = comm._progress.waiting() if comm else None
        line = student.line if student.doing else self.process.line(student.index)
        at = f" ({self.path.name}, line {line})" if student.asks and line else ""
        at = at if student.asks else " after its call has returned"
        if waiting is None:
            return f"computes{at}"
        text = waiting[0].text  # a send is an isend and its wait
        return f"waits in {text[student.doing in ('send', 'recv') :]}{at}"


def told(error: BaseException) -> str:
    """An error that ends a check, in one line."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, StudentError):
        cause = cause.__cause__  # a plan that fails in the student's step
    if isinstance(error, (StudentError, FaultError)):
        return str(error)
    if cause is not None:
        return f"{type(error).__name__}: {str(error).replace('StudentError: ', '')}"
    if isinstance(error, MessageLengthError):  # of a collective of the check
        return f"ranks make different calls of comm, or with arrays of different lengths: {error}"
    return f"the check itself failed: {type(error).__name__}: {error}"


def main(path: Path) -> None:
    """Runs the job in a file, and removes the file and that of the results when they are open."""
    job = Job(**json.loads(path.read_text()))
    comm = world(guard=False) if job.mpi else None
    with open(job.results, "ab", buffering=0) as results:
        results.write(Row(LOADING, comm.rank if comm else 0).signed(job.key))  # ranks have started
        if comm:
            comm.barrier()
        for name in (path, Path(job.results)):
            name.unlink(missing_ok=True)
        process = StudentProcess(1 if comm else max(size for _, size in job.cases))

        def report(row: Row) -> None:
            results.write(row.signed(job.key))

        worker = Worker(job, process, report, comm)
        threading.Thread(target=worker.monitor, daemon=True).start()
        worker.run()
        process.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
