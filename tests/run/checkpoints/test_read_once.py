"""A checkpoint that other ranks in another layout read: each the blocks that it needs, once."""

from collections import Counter
from pathlib import Path

import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.checkpoints.read import BlockReader

COMMON = {"model": "mlp:784-2000-10", "data": "synthetic:1x28x28:10:90", "allreduce": "ring"}


def test_each_rank_reads_the_blocks_that_it_needs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(comm: Comm) -> None:
        trainer = Trainer(Config(**COMMON, zero=1), comm=comm)
        trainer.save_checkpoint(tmp_path)
        trainer.close()

    def counted(self: BlockReader, file: str, number: int) -> bytes:
        before = self.size
        block = plain(self, file, number)
        if self.size > before:
            readers.setdefault(id(self), Counter())[file, number] += 1
        return block

    threads.run(2, write)
    readers: dict[int, Counter[tuple[str, int]]] = {}
    plain = BlockReader._block
    monkeypatch.setattr(BlockReader, "_block", counted)
    threads.run(3, lambda comm: Trainer(Config(**COMMON, tp=3), comm=comm, resume=tmp_path).close())
    assert len(readers) == 3
    assert all(set(blocks.values()) == {1} for blocks in readers.values())
    files = sum(f.stat().st_size for f in tmp_path.glob("*/*.safetensors"))
    most = -(-files // (1 << 20))
    assert all(len(blocks) < most for blocks in readers.values())
