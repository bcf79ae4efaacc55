"""Proofs of layouts of small models."""

from collections.abc import Callable, Sequence
from typing import Any

from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi import data
from nnmpi.addons.planning.paper.recording import passes
from nnmpi.addons.planning.rank_lists import list_of_batch
from nnmpi.addons.proof.proof import prove_sums
from nnmpi.addons.proof.shares import Shares
from nnmpi.data import Dataset
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.schedules.op import Op

Change = Callable[[list[Op]], Sequence[Op]]


def text() -> Dataset:
    return data.load("text", context=16)


GPT: dict[str, Any] = {"model": "gpt:2x4x32", "given": text, "batch_size": 8, "allreduce": "ring"}
LLAMA = {**GPT, "model": "llama:2x4x32:2"}
CNN: dict[str, Any] = {"model": "digits-cnn", "given": digits, "batch_size": 8}


def on_paper(ranks: int, **options: Any) -> Arrangement:
    return arranged(Cluster.on_paper(ranks), **options)


def lists_of(a: Arrangement) -> list[Sequence[Op]]:
    return [list_of_batch(a, rank).ops for rank in range(a.mesh.size)]


def proved(a: Arrangement, lists: Sequence[Sequence[Op]] | None = None) -> Shares:
    """What is due; ScheduleError if a list does something else."""
    ops = lists_of(a) if lists is None else lists
    return prove_sums(a, ops, lambda rank, stage, n: passes(a, rank, stage, n).exchanges).shares
