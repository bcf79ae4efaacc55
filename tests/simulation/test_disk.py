"""The writer of checkpoints on a disk that loses what is not synced, is full or read-only.

Each tree that a power cut may leave, at each operation, has to keep the promises of `files.py`.
"""

import errno
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.training.made_checkpoints import about_run, made, wrong

from nnmpi.addons.checkpoints.keep import clean, make_part, part_of
from nnmpi.addons.checkpoints.rank_file import CancelledError
from nnmpi.addons.checkpoints.schema import NAME
from nnmpi.addons.checkpoints.write import Writer, WriteResult
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.files.outputs import LogMark, is_of_run
from simulation.case import Case
from simulation.disk import Disk, DiskFault
from simulation.files import Judge, in_memory, the_newest_is_taken
from simulation.mutant_table import ABANDONED, MUTANTS, POWER_CUT
from simulation.mutants import Mutant, mutated
from simulation.scheduler import SimulatedScheduler

N = 300  # numbers in a tensor
FULL, READ_ONLY = errno.ENOSPC, errno.EROFS
FAULTS = (
    DiskFault("pwrite", "rank-00001*", FULL),
    DiskFault("rename", "*", READ_ONLY),
)
"""What fails while a checkpoint is written, on one rank or on all."""


class Life:
    """What two ranks do with a directory of checkpoints."""

    def __init__(self, root: Path) -> None:
        self.directory, self.log = root / "checkpoints", root / "logs" / "log"
        self.log.parent.mkdir()
        self.judge = Judge(self._check)
        self.disk = Disk(root, self.judge)

    def _check(self, root: Path, written: int) -> None:
        """Before and after the next run has cleaned the directory."""
        directory = root / self.directory.name
        found = the_newest_is_taken(directory, written)
        if found is not None:
            mark, log = found.about().log, root / self.log.parent.name / self.log.name
            assert mark is not None
            assert log.exists(), "the log is gone"
            assert is_of_run(str(log), mark), f"the log lacks lines that {found.folder.name} counts"
            assert not wrong([found.snapshot()], N)
            clean(directory)
            again = the_newest_is_taken(directory, written)
            assert again is not None
            assert again.step == found.step

    def live(self, comm: Comm) -> None:
        writer = Writer(self.directory, comm, keep=2)
        for step in (1, 2, 3, 3):  # that of step 3 again, as after a rank was lost
            self._write(writer, comm, step)
        for i, fault in enumerate(FAULTS):
            comm.barrier()
            self.disk.fault = fault
            result = self._write(writer, comm, 4 + i)
            assert result.problem.endswith(os.strerror(fault.number)), (fault, result)
            comm.barrier()
            self.disk.fault = None
        self._write(writer, comm, 6)
        writer.close()

    def _write(self, writer: Writer, comm: Comm, step: int) -> WriteResult:
        if comm.rank == 0:
            with self.log.open("a") as log:
                log.write(f"a line of step {step}\n")
            size = self.log.stat().st_size
            about = about_run([np.full(3, step)], log=LogMark.of(str(self.log), size))
        else:
            about = about_run()
        assert writer.start(made(comm, step, N), about, str(self.log)) is None
        result = writer.finish()
        assert result is not None
        if result.problem:
            assert not [*self.directory.glob(f"*{step:08d}*")], f"{result} has left something"
        else:
            self.judge.written = step
        return result


def a_power_cut_at_each_operation() -> Life:
    with in_memory() as folder:
        life = Life(Path(folder))
        with life.disk.followed():
            case = Case("", drawn=())
            threads.run(2, life.live, scheduler=SimulatedScheduler(case, 2), fault_tolerant=True)
        return life


def test_no_power_cut_loses_a_checkpoint() -> None:
    life = a_power_cut_at_each_operation()
    assert life.disk.operations > 90
    assert life.judge.written == 6


def abandoned_in_a_commit(directory: Path) -> None:
    """A writer is abandoned when its manifest is written, before it names the folder; another one
    begins to write the same step."""

    def rank(comm: Comm) -> None:
        first, second = Writer(directory, comm), list[Writer]()

        def at_operation(disk: Disk) -> None:
            if not second and (part_of(directory, 1) / NAME).exists():
                first.abandon()
                second.append(Writer(directory, comm))
                make_part(directory, 1)  # the same step again, of which nothing is written yet

        with Disk(directory, at_operation).followed():
            first.start(made(comm, 1), about_run())
            with suppress(CancelledError):
                first.finish()
        second[0].close()

    threads.run(1, rank, scheduler=SimulatedScheduler(Case("", drawn=()), 1))
    the_newest_is_taken(directory, 1)
    assert part_of(directory, 1).is_dir()


def test_a_writer_that_was_abandoned_names_no_folder_of_the_next_one(tmp_path: Path) -> None:
    abandoned_in_a_commit(tmp_path)


FINDS: dict[str, Callable[[Path], object]] = {
    POWER_CUT: lambda _: a_power_cut_at_each_operation(),
    ABANDONED: abandoned_in_a_commit,
}


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.killed_by in FINDS], ids=lambda mutant: mutant.name
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files stay open
def test_a_fault_of_the_writer_is_found(mutant: Mutant, tmp_path: Path) -> None:
    finds = FINDS[str(mutant.killed_by)]
    with mutated(mutant) as reached, pytest.raises(AssertionError):
        finds(tmp_path)
    gc.collect()  # files that were left open
    assert reached.times
