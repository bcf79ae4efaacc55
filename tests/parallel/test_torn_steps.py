"""Ranks that are killed between any two lines of a step: the others have a whole version."""

from collections.abc import Callable
from copy import deepcopy
from functools import partialmethod
from typing import NamedTuple

import numpy as np
import pytest
from helpers.training.torn_steps import (
    TORN,
    Deaths,
    Left,
    Options,
    Rows,
    cut_up,
    steps,
    torn,
    trainer_of,
    versions,
    whole,
)

from nnmpi.arrays.kernels.steps import adam_loop
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.optim import Adam
from nnmpi.optim.groups import Group
from nnmpi.optim.operands import Operands
from nnmpi.parallel.stores.journal import NO_JOURNAL
from nnmpi.parallel.stores.node import NodeStore


class Case(NamedTuple):
    """A layout: its ranks, and how many of them share memory."""

    ranks: int
    per_node: int
    options: Options

    def left(self, deaths: Deaths) -> list[Left | None]:
        """What ranks have after a step in which some are killed."""
        return threads.run(
            self.ranks, torn, self.options, deaths, per_node=self.per_node, fault_tolerant=True
        )


class Known(NamedTuple):
    """A version: what all ranks have together, and the buffers of each."""

    rows: Rows
    buffers: list[dict[str, np.ndarray]]


SHARED: Options = {"allreduce": "shared"}
RING: Options = {"allreduce": "ring"}
STAGES: Options = {"pp": 2, "cut": "4", "micro_batches": 2}
NODES = {
    "a node": Case(3, 3, SHARED),
    "buckets": Case(2, 2, {**SHARED, "bucket_mb": 1e-4}),
    "masters": Case(3, 3, {**SHARED, "dtype": "float16"}),
    "two nodes": Case(4, 2, SHARED),
    "stages": Case(4, 2, {**SHARED, **STAGES, "dp": 2}),
}
OTHERS = {
    "replicas": Case(3, 3, RING),
    "masters of replicas": Case(3, 3, {**RING, "dtype": "float16"}),
    "stages of replicas": Case(6, 6, {**RING, **STAGES, "dp": 3}),
    "shards": Case(2, 2, {**RING, "zero": 1}),
    "slices": Case(2, 2, {"reproducible": True, "slices": 4}),
}


def known_versions(case: Case) -> list[Known]:
    found = threads.run(
        case.ranks, versions, case.options, per_node=case.per_node, fault_tolerant=True
    )
    return [
        Known(whole([one for own in now for one in own.owned]), [own.buffers for own in now])
        for now in zip(*found, strict=True)
    ]


def check(found: list[Left | None], known: list[Known], is_whole: bool = True) -> int:
    """The last version that ranks have is that of a run in which nobody is killed, bit for bit;
    which one it is."""
    here = {rank: left for rank, left in enumerate(found) if left is not None}
    last = max(left.version for left in here.values())
    for rank, left in here.items():
        for path, array in known[left.version].buffers[rank].items():
            np.testing.assert_array_equal(left.buffers[path], array, err_msg=path, strict=True)
    if is_whole:
        rows = whole([one for left in here.values() if left.version == last for one in left.owned])
        assert rows.keys() == known[last].rows.keys()
        for key, row in rows.items():
            wanted = known[last].rows[key]
            np.testing.assert_array_equal(row, wanted, err_msg=f"{key}", strict=True)
    return last


def some_of(cases: dict[str, Case]) -> list[object]:
    """All names; most of them are for --all."""
    few = ("a node", "masters", "replicas", "shards")
    return [pytest.param(name, marks=() if name in few else pytest.mark.long) for name in cases]


def sample(lines: int, most: int) -> range:
    return range(1, lines + 1, max(lines // most, 1))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["numpy", "compiled"])
@pytest.mark.parametrize("name", some_of(NODES))
def test_the_update_of_a_rank_of_a_node_is_finished_by_others(
    name: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled and adam_loop.compiled is None:
        pytest.skip("the kernels were not compiled")
    with cut_up(monkeypatch, is_compiled):
        check_killed_in_update(NODES[name], 6)


def check_killed_in_update(case: Case, most: int) -> None:
    """A rank is killed at so many lines of its update, one after the other."""
    known, victim = known_versions(case), 1
    alive = case.left(Deaths())[victim]
    assert alive is not None
    found = set()
    for number in sample(alive.lines, most):
        left = case.left(Deaths({victim: number}))
        assert left[victim] is None
        found.add(check(left, known))
    assert found == {TORN, TORN + 1}


@pytest.mark.parametrize("name", ["a node", "masters"])
def test_the_update_of_an_optimizer_that_keeps_nothing_is_finished_by_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: Adam, x: Operands, group: Group, plain: Callable[..., None]) -> None:
        plain(self, x._replace(undo=()), group)

    with cut_up(monkeypatch):
        monkeypatch.setattr(Adam, "_update", partialmethod(update, plain=Adam._update))
        monkeypatch.setattr(Adam, "keeps_undo", False)
        monkeypatch.setattr(Adam, "takes_mixed", False)
        check_killed_in_update(NODES[name], 9)


def test_a_rank_is_lost_that_finishes_the_update_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cut_up(monkeypatch):
        case = Case(3, 3, SHARED)
        known, alive = known_versions(case), case.left(Deaths())[1]
        assert alive is not None
        middle = alive.lines // 2
        first = case.left(Deaths({1: middle}))[0]
        assert first is not None
        for number in sample(first.more, 5):
            left = case.left(Deaths({1: middle}, {0: number}))
            assert left[:2] == [None, None]
            assert check(left, known) == TORN + 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", some_of(OTHERS))
def test_a_step_is_finished_or_undone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with cut_up(monkeypatch):
        case, victim = OTHERS[name], 1
        known, alive = known_versions(case), case.left(Deaths(update_only=False))[victim]
        assert alive is not None
        found = set()
        for number in sample(alive.lines, 7):
            left = case.left(Deaths({victim: number}, update_only=False))
            if left[victim] is None:  # a rank that has waited for less runs fewer lines
                found.add(check(left, known, is_whole="zero" not in case.options))
        assert TORN in found


def trained(comm: Comm, options: Options) -> tuple[str, list[np.ndarray]]:
    """The kind of the store, and values and the state of the optimizer once it is closed."""
    trainer = trainer_of(comm, options)
    for now in steps(trainer):
        store = type(now.optimizer.parameters[0].store).__name__
    twin = deepcopy(trainer.optimizer)
    trainer.close()
    for one in trainer.optimizer, twin:  # its sums are no memory of the node any more
        for array in one.state.values():
            array += 0
    arrays = [p.data for p in trainer.model.parameters()]
    return store, [*arrays, *trainer.optimizer.state.values(), *twin.state.values()]


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"optimizer": "sgd"}], ids=str)
def test_what_is_noted_changes_no_bit(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    with cut_up(monkeypatch):
        plain, noted = (
            threads.run(2, trained, {**SHARED, **options}, fault_tolerant=survives)
            for survives in (False, True)
        )
    for (a, arrays), (b, others) in zip(plain, noted, strict=True):
        assert (a, b) == ("NodeStore", "JournaledNodeStore")
        for array, other in zip(arrays, others, strict=True):
            np.testing.assert_array_equal(array, other, strict=True)


def test_without_fault_tolerance_nothing_is_noted_or_kept() -> None:
    def stores(comm: Comm) -> None:
        trainer = trainer_of(comm, SHARED)
        store = trainer.optimizer.parameters[0].store
        assert isinstance(store, NodeStore)
        assert store.journal is NO_JOURNAL
        assert trainer.strategy.torn is None

    threads.run(2, stores)
