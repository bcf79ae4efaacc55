"""Plans of moves: who gives what, prices and messages, and what is nowhere."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.place import Box, Place, Range, whole
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.model import moving
from nnmpi.parallel.model.moves import Holder, MovedTensor, MovePlan
from nnmpi.parallel.model.nearest import plan_moves

FLOATS = np.dtype(np.float32)
WHOLE = whole((4, 6))
ROWS = ((0, 2), (0, 6)), ((2, 4), (0, 6))
COLUMNS = ((0, 4), (0, 3)), ((0, 4), (3, 6))


def matrix(shape: tuple[int, ...] = (4, 6), **how: Any) -> MovedTensor:
    return MovedTensor("w", shape, (0, 1), FLOATS, **how)


def part_of(
    holder: Any, part: Box = WHOLE, lo: int = 0, hi: int | None = None
) -> tuple[Any, Range]:
    return holder, Place("w", (), part).range(lo, hi)


def plan_of(have: list[Any], need: list[Any], nodes: Any = (0,) * 8) -> MovePlan:
    return plan_moves([matrix()], have, need, nodes)


def givers(plan: MovePlan) -> list[tuple[Holder, Holder, int]]:
    return [(move.holder, move.rank, move.size) for move in plan.moves]


def test_the_nearest_gives() -> None:
    """Its own memory, then its node, then another rank, then a file."""
    nodes = (0, 0, 1, 1)
    have = [part_of("file"), part_of(2), part_of(1), part_of(0)]
    assert givers(plan_of(have, [part_of(0)], nodes)) == [(0, 0, 24)]
    assert givers(plan_of(have[:3], [part_of(0)], nodes)) == [(1, 0, 24)]
    assert givers(plan_of(have[:2], [part_of(0)], nodes)) == [(2, 0, 24)]
    assert givers(plan_of(have[:1], [part_of(0)], nodes)) == [("file", 0, 24)]


def test_a_rank_keeps_what_it_has_of_what_it_needs() -> None:
    have = [part_of(1), part_of(0, ROWS[0]), part_of("file", ROWS[1])]
    assert givers(plan_of(have, [part_of(0)])) == [(0, 0, 12), (1, 0, 12)]
    have = [part_of(1), part_of(0, lo=10, hi=14)]
    assert givers(plan_of(have, [part_of(0)])) == [(1, 0, 20), (0, 0, 4)]


def test_of_what_may_differ_all_get_the_first_copy() -> None:
    tensor = matrix(may_differ=True)
    have, need = [part_of(1), part_of(0), part_of("file")], [part_of(r) for r in range(3)]
    plan = plan_moves([tensor], have, need, (0,) * 3)
    assert givers(plan) == [(1, 0, 24), (1, 1, 24), (1, 2, 24)]


def test_a_part_that_is_needed_comes_from_parts_cut_along_another_axis() -> None:
    have = [part_of(r, part) for r, part in enumerate(ROWS)]
    need = [part_of(r, part) for r, part in enumerate(COLUMNS)]
    plan = plan_of(have, need)
    assert givers(plan) == [(0, 0, 6), (1, 0, 6), (0, 1, 6), (1, 1, 6)]
    runs = plan.moves[1].runs((0, 1))
    assert [a.tolist() for a in runs] == [[0, 6], [6, 9], [3, 3]]


def test_numbers_that_are_nowhere_are_refused() -> None:
    gap = [part_of(0, lo=0, hi=9), part_of(1, lo=10)]
    with refused("w: no rank has element 9 of the 24 in its part ((0, 4), (0, 6))"):
        plan_of(gap, [part_of(0)])
    with refused("w: no rank has element 4 of the 12 in its part ((0, 4), (0, 3))"):
        plan_of([part_of(0, lo=0, hi=7), part_of(1, lo=8)], [part_of(0, COLUMNS[0])])
    with refused("w: the parts [((0, 2), (0, 6))] that ranks have do not cover its shape (4, 6)"):
        plan_of([part_of(0, ROWS[0])], [part_of(0)])
    assert not plan_of([part_of(0, ROWS[0])], [part_of(1, ROWS[0], 3, 3)]).moves


def test_all_ranks_hear_of_a_file_that_cannot_be_read() -> None:
    """Messages of others go on."""

    def rank(comm: Comm) -> None:
        have = [part_of(0, ROWS[0]), part_of("file", ROWS[1])]
        plan = plan_of(have, [part_of(r) for r in range(comm.size)])

        def read(holder: Holder, have: Range, lo: int, hi: int) -> np.ndarray:
            if holder == "file" and comm.rank == 1:
                raise ValueError("the file is damaged")
            return np.zeros(hi - lo, np.float32)

        with pytest.raises((ValueError, OtherRankError), match="the file is damaged"):
            all_or_none(comm, lambda: [*moving.arrivals(plan, comm, read)])

    threads.run(3, rank)


def test_all_ranks_hear_of_numbers_that_cannot_be_written() -> None:
    """Messages of others go on."""

    def rank(comm: Comm) -> None:
        have = [part_of(0, ROWS[0]), part_of("file", ROWS[1])]
        plan = plan_of(have, [part_of(r) for r in range(comm.size)])

        arrived = moving.arrivals(plan, comm, lambda *a: np.zeros(a[3] - a[2], np.float32))

        def write() -> None:
            for _ in arrived:
                if comm.rank == 1:
                    arrived.throw(MemoryError("no memory is left"))

        with pytest.raises((MemoryError, OtherRankError), match="no memory is left"):
            all_or_none(comm, write)

    threads.run(3, rank)


def test_what_it_costs() -> None:
    """Two arrays of floats: half of each from a rank and half from a file."""
    tensors = [matrix(), matrix()._replace(path="x", dtype=np.dtype(np.float64))]
    have, need = [part_of(0, ROWS[0]), part_of("file", ROWS[1])], [part_of(0), part_of(1)]
    both = [
        [(at, one._replace(tensor=tensor.path)) for tensor in tensors for at, one in ranges]
        for ranges in (have, need)
    ]
    plan = plan_moves(tensors, *both, (0, 0))
    first, second = plan.moved(2)
    assert first == (144, 144, Traffic(144, 1), Traffic())
    assert second == (0, 144, Traffic(), Traffic(144, 1))
    assert first.needed == second.needed == 288
