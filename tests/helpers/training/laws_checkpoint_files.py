"""What checkpoints keep on ranks of any kind: functions of a Comm."""

from pathlib import Path

from helpers.once import folder
from helpers.training.made_checkpoints import read, written, wrong

from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects


def checkpoints_are_read_as_they_were_written(comm: Comm) -> None:
    """Small ones, and one whose copies are divided among the ranks; what is damaged is not read."""
    with folder(comm) as name:
        directory = Path(name)
        for step, n in enumerate((1000, 150_000), start=1):
            written(comm, directory, [step], n)
            found, snapshot = read(comm, directory)
            assert (found.step, found.passed_over) == (step, ())
            told = [one for one in gather_objects(comm, snapshot) if one is not None]
            assert wrong(told, n) == ""
            comm.barrier()
        if comm.rank == 0:
            path = max(found.folder.glob("rank-*"))
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 64
            path.write_bytes(content)
        comm.barrier()
        found, _ = read(comm, directory)
        assert found.step == 1
