"""Backups: whichever rank or node is lost, the others have all of one version; as functions of a
Comm."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from helpers.training.laws_snapshot import trainer_of

from nnmpi.addons.recovery.parallel.backup import Backups, Version, backups
from nnmpi.addons.recovery.parallel.backups_on_paper import backup, needs_backups
from nnmpi.comm import Comm
from nnmpi.nn.place import StateArray
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.step.executor import StepState

Options = Mapping[str, Any]
Whole = dict[tuple[Any, ...], np.ndarray]
"""The elements of each part of an array, in the order of its memory."""

Losses = Callable[[Comm], list[set[int]]]
"""Sets of ranks that may be lost together."""

RING: Options = {"allreduce": "ring"}
LAYOUTS: dict[str, tuple[int, Options]] = {
    "zero 1": (2, {"zero": 1, "bucket_mb": 0.001, **RING}),
    "zero 1 on three": (3, {"zero": 1, **RING}),
    "zero 3": (3, {"zero": 3, "bucket_mb": 0.001, **RING}),
    "zero 1 in 16 bits": (3, {"zero": 1, "dtype": "float16", **RING}),
    "stages": (3, {"pp": 3, "cut": "3,7"}),
    "stages in 16 bits": (2, {"pp": 2, "cut": "5", "dtype": "bfloat16"}),
    "layers": (3, {"tp": 3}),
    "stages of layers": (4, {"pp": 2, "tp": 2, "cut": "5"}),
    "copies of stages": (4, {"dp": 2, "pp": 2, "cut": "5", **RING}),
    "copies on a node": (4, {"dp": 2, "pp": 2, "cut": "5"}),
    "three axes": (8, {"dp": 2, "pp": 2, "tp": 2, "cut": "5", **RING, "zero": 3}),
}
"""With their numbers of ranks."""


class Kept:
    """Backups of a Trainer, beside copies of all that its rank had in each version."""

    def __init__(self, comm: Comm, options: Options, every: int = 2, mtbf: str = "24h") -> None:
        self.trainer = t = trainer_of(comm, **options)
        config = replace(t.config, backup=every, mtbf=mtbf)
        self.arrangement = a = replace(t.arrangement, config=config)
        self.backups = backups(a, t.session.state(), comm)
        assert isinstance(self.backups, Backups) == needs_backups(a)
        self.truth: dict[int, tuple[StateArray, ...]] = {}

    def train(self, steps: int) -> None:
        """So many steps of the first epoch, of three, with a backup of each version that is due."""
        t = self.trainer
        t.model.train()
        self._note(0)
        made = t.strategy.steps(t.train, StepState())
        for version, _ in zip(range(1, steps + 1), made, strict=False):
            self._note(version)
        made.close()

    def _note(self, version: int) -> None:
        self.truth[version] = self.trainer.session.snapshot().arrays
        if self.backups is not None:
            state = self.trainer.session.state()
            self.backups.after_step(version, f"version {version}", state)

    def close(self) -> None:
        if self.backups is not None:
            self.backups.close()
        self.trainer.close()


def whole(arrays: Iterable[StateArray]) -> Whole:
    """What these arrays make, with NaN where nothing is."""
    found: Whole = {}
    for x in arrays:
        row = found.setdefault((x.name, x.place.part), np.full(x.place.size, np.nan))
        row[x.lo : x.hi] = x.elements()
    return found


def has_all(arrays: Iterable[StateArray], truth: Iterable[StateArray]) -> bool:
    """Whether these arrays make the whole state as it was."""
    found, wanted = whole(arrays), whole(truth)
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[key], row) for key, row in wanted.items()
    )


Everywhere = list[tuple[Sequence[Version], dict[int, tuple[StateArray, ...]]]]
"""Of each rank: what it holds of earlier versions, and what it had in each."""


def left_by(everywhere: Everywhere, lost: Collection[int]) -> list[int]:
    """The versions of which the ranks that are left have all, the latest first."""
    found = []
    versions = {one.version for held, _ in everywhere for one in held}
    for version in sorted(versions, reverse=True):
        arrays = [
            one
            for r, (held, _) in enumerate(everywhere)
            for there in held
            for one in there.arrays
            if r not in lost and there.version == version
        ]
        truth = [one for _, had in everywhere for one in had.get(version, ())]
        found += [version] * has_all(arrays, truth)
    return found


def backups_outlive(comm: Comm, options: Options, losses: Losses) -> None:
    """After three steps with a backup of every other version, two of them are whole without any of
    these sets of ranks, and they took what is said on paper; or none are needed."""
    kept = Kept(comm, options)
    made = kept.backups
    if isinstance(made, Backups):
        ledger = made._comm.ledger
        kept.train(3)
        sent = Traffic(sum(ledger.sent_bytes), sum(ledger.sent_messages))
        held = sum(
            packed.memory.nbytes
            for memory in made._memories
            for packed in (memory.own, *memory.kept.values())
        )
        sent_once, held_on_paper = backup(kept.arrangement, comm.rank)
        assert (sent, held) == (sent_once.times(2), held_on_paper)
        told = gather_objects(comm, (made.held(), kept.truth))
        for lost in losses(comm):
            assert left_by(told, lost) == [2, 0], f"without {lost}"
    kept.close()


def each_rank(comm: Comm) -> list[set[int]]:
    return [{r} for r in range(comm.size)]


def each_node(comm: Comm) -> list[set[int]]:
    return [{*node} for node in gather_objects(comm, comm.node())]


def any_rank_may_be_lost(comm: Comm) -> None:
    """Whatever one rank alone has is on another, as it was, in both versions that are held."""
    for ranks, options in LAYOUTS.values():
        if ranks == comm.size:
            backups_outlive(comm, options, each_rank)
