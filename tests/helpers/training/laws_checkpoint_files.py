"""What checkpoints keep on ranks of any kind: functions of a Comm."""

import shutil
import tempfile
from pathlib import Path

from helpers.training.made_checkpoints import read, written, wrong

from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects


def checkpoints_are_read_as_they_were_written(comm: Comm) -> None:
    """Small ones, and one whose copies are divided among the ranks; what is damaged is not read."""
    made = tempfile.mkdtemp() if comm.rank == 0 else ""
    directory = Path(gather_objects(comm, made)[0])
    for step, n in enumerate((1000, 150_000), start=1):
        written(comm, directory, [step], n)
        found, snapshot = read(comm, directory)
        assert found is not None
        assert (found.step, found.passed_over) == (step, ())
        assert wrong([one for one in gather_objects(comm, snapshot) if one is not None], n) == ""
        comm.barrier()
    if comm.rank == 0:
        path = max(found.folder.glob("rank-*"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 64
        path.write_bytes(content)
    comm.barrier()
    found, _ = read(comm, directory)
    assert found is not None
    assert found.step == 1
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(directory)
