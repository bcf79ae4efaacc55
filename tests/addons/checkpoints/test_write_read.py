"""A checkpoint that turns out to be damaged in the midst of a restore."""

from pathlib import Path

from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import MIDDLE, RING, run, same
from helpers.training.made_checkpoints import about_of

from nnmpi import Trainer
from nnmpi.addons.checkpoints.keep import folder_of
from nnmpi.addons.checkpoints.read import use_newest
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

ADAM = OPTIMIZERS[1]


def test_where_a_block_is_damaged_all_ranks_go_on_from_the_one_before(tmp_path: Path) -> None:
    """One rank notices when it reads, in the midst of a restore."""
    options = {**ADAM, **RING, "zero": 1}

    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            writer, snapshot = Writer(tmp_path, comm), trainer.snapshot()
            writer.start(snapshot, about_of(trainer))
            later = snapshot.state._replace(step=MIDDLE + 1)
            writer.start(snapshot._replace(state=later), about_of(trainer))
            writer.close()
            if comm.rank == 0:
                path = folder_of(tmp_path, MIDDLE + 1) / "rank-00001.safetensors"
                content = bytearray(path.read_bytes())
                content[-1] ^= 1  # of optimizer state: all values are read before
                path.write_bytes(content)
            comm.barrier()
            found = use_newest(tmp_path, comm, lambda one: trainer.restore(one.snapshot()))
            assert found is not None
            assert found.step == MIDDLE
            (text,) = found.passed_over
            assert "rank-00001.safetensors is damaged: block 0 of 1 MB" in text

        same(run(comm, options, act), run(comm, options))

    threads.run(2, rank)
