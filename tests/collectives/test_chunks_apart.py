"""Messages of chunks that do not follow each other: the steps that say so, PAT, and all-to-alls;
runs of rounds that are alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.simulator.collective import OPERATIONS
from nnmpi.addons.simulator.topologies import torus
from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS, REDUCE_SCATTERS, Collective
from nnmpi.collectives.bruck import pat
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import (
    Algorithm,
    PlanError,
    Step,
    in_rounds,
    levels,
    per_rank,
    then,
    transpose,
)
from nnmpi.collectives.verify import verify

# ---- ranges

RANGES: dict[str, tuple[tuple[int, int], int, int, list[list[tuple[int, int]]]]] = {
    # range, block, stride -> messages of 8 chunks
    "one after the other": ((2, 5), 1, 1, [[(2, 5)]]),
    "past the last": ((6, 10), 1, 1, [[(6, 8)], [(0, 2)]]),
    "all, from the middle": ((3, 11), 1, 1, [[(3, 8)], [(0, 3)]]),
    "each second": ((1, 6), 1, 2, [[(1, 2), (3, 4), (5, 6)]]),
    "two of them": ((1, 5), 1, 2, [[(1, 2)], [(3, 4)]]),
    "pairs, the last cut": ((1, 8), 2, 3, [[(1, 3), (4, 6), (7, 8)]]),
    "pairs past the last": ((3, 9), 2, 4, [[(3, 5)], [(7, 8)], [(0, 1)]]),
    "each third, past the last": ((4, 12), 1, 3, [[(4, 5), (7, 8), (2, 3)]]),
    "blocks that touch": ((0, 4), 2, 2, [[(0, 4)]]),
}


@pytest.mark.parametrize("case", RANGES.values(), ids=RANGES)
def test_a_step_takes_blocks_of_its_range(case: Any) -> None:
    range_, block, stride, messages = case
    step = Step(1, range_, 1, range_, False, block=block, stride=stride)
    if sum(map(len, messages)) > 2:
        messages = [[piece for message in messages for piece in message]]
    assert [[*message] for message in step.sends(8)] == messages
    chunks = [c for message in messages for lo, hi in message for c in range(lo, hi)]
    assert step.count(range_) == len(chunks) == len(set(chunks))
    wide = step.moved(10, 3)
    assert wide.count(wide.send) == 3 * len(chunks)
    assert step._replace(to=-1).sends(8) == ()


def gathered(**fields: Any) -> Algorithm:
    """Two ranks of four chunks exchange two of them, apart from each other."""
    plain = {"reduce": False, "block": 1, "stride": 2} | fields
    at = Step([1, 0], ([0, 1], [3, 4]), [1, 0], ([1, 0], [4, 3]), **plain)
    return Algorithm(lambda p: 1, lambda p: 4, lambda t, r, p: at)


WRONG = {
    "no stride": ({"stride": 0}, "block 1 is not from 1 to stride 0"),
    "no block": ({"block": 0}, "block 0 is not from 1 to stride 2"),
    "a block too long": ({"block": 3}, "block 3 is not from 1 to stride 2"),
    "a stride for each rank": ({"stride": [2, 2]}, "stride of type list is not one integer"),
    "swap in words": ({"swap": "yes"}, "swap is 'yes'; use one bool for all ranks"),
    "chunks that are sent": ({"stride": 1}, "overwrites chunk 1 while sending it"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_blocks_are_refused(case: tuple[dict[str, Any], str]) -> None:
    fields, says = case
    claim = Collective.ALL_GATHER.claim._replace(
        starts=lambda r, c: True, ends=lambda r, c, p: {c % 2}
    )
    verify(gathered(), 2, claim)
    with pytest.raises(PlanError) as refused:
        verify(gathered(**fields), 2, claim)
    assert says in str(refused.value)


def test_a_chunk_is_replaced_on_one_port_only() -> None:
    """While another port sends it, or receives it too."""

    def at_once(*chunks: tuple[int, int]) -> Algorithm:
        def at(t: int, r: Any, p: int) -> Step:
            out, into = np.array([chunks[t], chunks[t][::-1]]).T
            return Step([1, 0], (out, out + 1), [1, 0], (into, into + 1), False, t, len(chunks))

        return Algorithm(lambda p: len(chunks), lambda p: 4, at)

    anything = Collective.ALL_GATHER.claim._replace(
        starts=lambda r, c: True, ends=lambda r, c, p: None
    )
    verify(at_once((0, 1), (2, 3)), 2, anything)
    for chunks in (((0, 1), (2, 1)), ((0, 1), (3, 0))):
        says = "rank 0 replaces chunks .*, which another port uses at the same time"
        with pytest.raises(PlanError, match=says):
            verify(at_once(*chunks), 2, anything)


# ---- PAT


@pytest.mark.parametrize("most", [1, 2, 4, 16, 64])
def test_pat_is_proved_for_any_number_of_chunks_in_a_message(most: int) -> None:
    for p in (*range(1, 18), 33):
        verify(pat(most), p, Collective.ALL_GATHER.claim)
        verify(transpose(pat(most)), p, Collective.REDUCE_SCATTER.claim)


@pytest.mark.parametrize("p", [2, 7, 16, 17, 100, 1000])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_messages_of_pat_and_what_a_rank_keeps_for_others_are_bounded(p: int, most: int) -> None:
    """Rank 0 sends own chunks and chunks that it has received; Bruck's keeps half of all."""
    plan = [*pat(most).steps(0, p)]
    sent = [{c for m in s.sends(p) for piece in m for c in range(*piece)} for s in plan]
    held, kept = {0}, [0]
    for t, step in enumerate(plan):
        assert len(sent[t]) <= most
        held |= {c for m in step.receives(p) for piece in m for c in range(*piece)}
        kept.append(len((held - {0}) & set().union(*sent[t + 1 :])))
    assert max(kept) <= most * levels(p)
    assert len(plan) == levels(p) or p > 2 * most


def test_pat_sends_few_chunks_far_and_bruck_many() -> None:
    on = Network(Link(0.0, 1.0), topology=torus((64,)))
    far_first, near_first = pat(64), ALL_GATHERS["bruck"]
    crossed = {
        name: sum((min(step.to, 64 - step.to) * step.count(step.send)) for step in a.steps(0, 64))
        for name, a in (("pat", far_first), ("bruck", near_first))
    }
    assert crossed["pat"] * 3 < crossed["bruck"]
    assert 3 * price(far_first, 64, 1.0, on).seconds < price(near_first, 64, 1.0, on).seconds


# ---- all-to-alls


def test_a_chunk_that_goes_astray_is_named() -> None:
    twice = then(*(OPERATIONS["all-to-all"].algorithms["bruck"],) * 2)
    with pytest.raises(PlanError, match="at the end: rank 0, chunk 1: the contribution of rank 2"):
        verify(twice, 3, Collective.ALL_TO_ALL.claim)


def test_an_all_to_all_by_bruck_is_faster_for_short_buffers() -> None:
    on, by = Network(Link(5e-6, 1e-10)), OPERATIONS["all-to-all"].algorithms
    fastest = [min(by, key=lambda name: price(by[name], 64, m, on).seconds) for m in (1e3, 1e8)]
    assert fastest == ["bruck", "p2p"]


# ---- runs of rounds that are alike

RUNS = {
    f"{operation} {name}": algorithm
    for operation, plans in (
        ("", ALGORITHMS),
        ("gather", ALL_GATHERS),
        ("scatter", REDUCE_SCATTERS),
    )
    for name, algorithm in plans.items()
    if algorithm.runs is not None
}
NETWORKS: dict[str, Callable[[int], Network]] = {
    "one level": lambda p: Network(Link(5e-6, 1e-10), 3e-11),
    "two levels": lambda p: Network(Link(5e-6, 1e-10), 2e-11, Link(1e-6, 1.7e-11), 4),
    "two levels, rank 0 beside the last": lambda p: Network(
        Link(5e-6, 1e-10), 2e-11, Link(1e-6, 1.7e-11), nodes=(np.arange(p) + 1) % p // 4
    ),
    "a ring": lambda p: Network(Link(5e-6, 1e-10), 3e-11, topology=torus((p,))),
    "a longer ring": lambda p: Network(Link(5e-6, 1e-10), topology=torus((3 * p,))),
}


def test_rings_say_which_rounds_are_alike() -> None:
    assert list(RUNS) == [" ring", "gather ring", "scatter ring"]
    assert ALGORITHMS["ring"].runs(5) == [4, 4]  # type: ignore[misc]


@pytest.mark.parametrize("on", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("algorithm", RUNS.values(), ids=RUNS)
def test_a_run_costs_what_its_rounds_cost(algorithm: Algorithm, on: Any) -> None:
    for p in (1, 2, 3, 13, 16):
        at_once, each = (
            price(a, p, 1234567.0, on(p)) for a in (algorithm, algorithm._replace(runs=None))
        )
        assert (at_once.seconds.hex(), at_once.rounds) == (each.seconds.hex(), each.rounds)
        np.testing.assert_allclose(at_once.sent, each.sent, rtol=1e-14)
        assert at_once.messages.tolist() == each.messages.tolist()


@pytest.mark.parametrize("algorithm", RUNS.values(), ids=RUNS)
def test_rounds_of_a_run_have_the_same_messages(algorithm: Algorithm) -> None:
    assert algorithm.runs is not None
    for p in (2, 5, 8):
        rounds = [*in_rounds(algorithm.steps(np.arange(p), p))]
        rows = [
            [(s.to, s.source, int(s.count(s.recv)), s.reduce) for s in per_rank(step, p)]
            for (step,) in rounds
        ]
        first = 0
        for times in algorithm.runs(p):
            assert rows[first : first + times] == [rows[first]] * times
            first += times
        assert first == len(rounds)


def test_a_million_ranks_in_a_ring_on_a_torus_are_priced() -> None:
    """By one clock; each of two million rounds would take milliseconds."""
    p = 1_000_000
    paid = price(ALGORITHMS["ring"], p, 1e8, Network(Link(5e-6, 1e-10), topology=torus((p,))))
    assert paid.rounds == 2 * (p - 1)
    assert paid.seconds == pytest.approx(2 * (p - 1) * (5e-6 + 100 * 1e-10), rel=1e-9)
