"""Every collective algorithm satisfies its claim; verify() says what is wrong in broken plans."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.simulator.collective import exchange
from nnmpi.collectives.algorithms import (
    ALGORITHMS,
    ALL_GATHERS,
    BROADCASTS,
    REDUCE_SCATTERS,
    REDUCES,
    Collective,
    hierarchical,
    ring,
    tree,
)
from nnmpi.collectives.combine import rooted
from nnmpi.collectives.step import Algorithm, Claim, Step, per_rank, then, transpose
from nnmpi.collectives.verify import PlanError, verify

SIZES = (*range(1, 18), 32, 64)
PLANS = {
    f"{c.text}-{name}": (plan, c.claim) for c in Collective for name, plan in c.algorithms.items()
}
each_plan = pytest.mark.parametrize("case", PLANS.values(), ids=PLANS)


# ---- correct plans


@each_plan
@pytest.mark.parametrize("p", SIZES)
def test_every_algorithm_satisfies_its_claim(case: tuple[Algorithm, Claim], p: int) -> None:
    plan, claim = case
    verify(plan, p, claim)


@pytest.mark.parametrize("q", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("p", SIZES)
def test_nodes_may_have_any_size(p: int, q: int) -> None:
    verify(hierarchical(q), p)


def reduce_to(root: int) -> Claim:
    return Collective.REDUCE.claim._replace(ends=lambda r, c, p: {*range(p)} if r == root else None)


def broadcast_from(root: int) -> Claim:
    return Claim(lambda r, c: r == root, lambda r, c, p: {root})


@pytest.mark.parametrize("p", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("name", REDUCES)
def test_any_rank_can_be_the_root(name: str, p: int) -> None:
    for root in {0, 1 % p, p // 2, p - 1}:
        verify(rooted(REDUCES[name], root), p, reduce_to(root))
        verify(rooted(BROADCASTS[name], root), p, broadcast_from(root))


def test_another_root_than_the_one_of_the_plan_is_refused() -> None:
    for plan, claim in ((REDUCES["tree"], reduce_to(1)), (BROADCASTS["tree"], broadcast_from(1))):
        with pytest.raises(PlanError):
            verify(plan, 4, claim)


@each_plan
@pytest.mark.parametrize("p", [1, 2, 3, 6, 8, 13])
def test_the_step_of_one_rank_is_its_row_of_the_steps_of_all(
    case: tuple[Algorithm, Claim], p: int
) -> None:
    plan, _ = case
    for t, whole in enumerate(plan.steps(np.arange(p), p)):
        for r, row in enumerate(per_rank(whole, p)):
            one = plan.at(t, r, p)
            numbers = (one.to, *one.send, one.source, *one.recv)
            for x in numbers:
                assert np.ndim(x) == 0
                assert np.issubdtype(np.asarray(x).dtype, np.integer)
            to, lo, hi, source, into_lo, into_hi = map(int, numbers)
            assert Step(to, (lo, hi), source, (into_lo, into_hi), *one[4:]) == row
            assert isinstance(one.reduce, bool)


# ---- broken plans

Table = list[list[Step]]  # round, rank


def table(plan: Algorithm, p: int) -> Table:
    return [per_rank(step, p) for step in plan.steps(np.arange(p), p)]


def planned(rows: Table, chunks: int) -> Algorithm:
    """A plan from a table of its steps."""

    def at(t: int, r: Any, p: Any) -> Step:
        columns = [
            np.array([getattr(s, field) for s in rows[t]])[r]
            for field in ("to", "send", "source", "recv")
        ]
        to, send, source, recv = columns
        return Step(to, (send[:, 0], send[:, 1]), source, (recv[:, 0], recv[:, 1]), rows[t][0][4])

    return Algorithm(lambda p: len(rows), lambda p: chunks, at)


def messages(*given: tuple[int, int, int], p: int, reduce: bool) -> list[Step]:
    """A round from messages (source, to, chunk)."""
    row = [Step(-1, (0, 1), -1, (0, 1), reduce) for _ in range(p)]
    for source, to, c in given:
        row[source] = row[source]._replace(to=to, send=(c, c + 1))
        row[to] = row[to]._replace(source=source, recv=(c, c + 1))
    return row


def ring4() -> Table:
    return table(ALGORITHMS["ring"], 4)


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_a_ring_sends_to_the_right_in_all_rounds(p: int) -> None:
    for plan in (ALGORITHMS["ring"], ALL_GATHERS["ring"], REDUCE_SCATTERS["ring"]):
        for row in table(plan, p):
            assert [s.to for s in row] == [(r + 1) % p for r in range(p)]


def changed(t: int, r: int, **fields: Any) -> Algorithm:
    rows = ring4()
    rows[t][r] = rows[t][r]._replace(**fields)
    return planned(rows, 4)


def toggled(t: int) -> Algorithm:
    rows = ring4()
    rows[t] = [s._replace(reduce=not s.reduce) for s in rows[t]]
    return planned(rows, 4)


ADD, PUT = {"p": 4, "reduce": True}, {"p": 4, "reduce": False}

# In round 1 rank 2 sends chunk 0 to rank 3 and adds what rank 1 has of chunk 3.
BROKEN: dict[str, tuple[Algorithm, tuple[str, ...]]] = {
    "a missing round": (
        planned(ring4()[:-1], 4),
        ("at the end: rank 0, chunk 1: the contribution of rank 1 is missing",),
    ),
    "a wrong peer": (changed(1, 2, to=0), ("round 1: rank 2 sends chunks 0 to rank 0",)),
    "a send without a receive": (
        changed(1, 3, source=-1),
        ("round 1: rank 2 sends chunks 0 to rank 3, which waits for nothing",),
    ),
    "a receive without a send": (
        changed(1, 1, to=-1),
        ("round 1: rank 2 waits for chunks 3 from rank 1, which sends it nothing",),
    ),
    "a wrong chunk": (
        changed(1, 2, send=(1, 2)),
        ("round 1: rank 2 sends chunks 1 to rank 3, which waits for chunks 0 from rank 2",),
    ),
    "too many chunks": (
        changed(1, 2, send=(3, 8)),
        ("round 1: rank 2 sends chunks 3..7 to rank 3, not a range of 4 chunks",),
    ),
    "no chunks": (
        changed(1, 2, recv=(3, 3)),
        ("round 1: rank 2 waits for", "not a range of 4 chunks"),
    ),
    "a rank that sends to itself": (
        changed(1, 2, to=2),
        ("round 1: rank 2 sends chunks 0 to rank 2, which is not another one of the 4",),
    ),
    "a rank out of range": (
        changed(1, 2, source=4),
        ("round 1: rank 2 waits for chunks 3 from rank 4, which is not another one of the 4",),
    ),
    "overwriting where it should add": (
        toggled(1),
        ("at the end: rank 0, chunk 0: the contribution",),
    ),
    "adding where it should overwrite": (
        toggled(4),
        ("round 4", "rank 0 adds the contribution of rank 0 to chunk 2 twice"),
    ),
    "the same message twice": (
        planned([messages((1, 0, 0), **ADD), messages((1, 0, 0), **ADD)], 1),
        ("round 1", "rank 0 adds the contribution of rank 1 to chunk 0 twice"),
    ),
    "overwriting while sending": (
        planned([messages((0, 1, 0), (1, 0, 0), **PUT)], 1),
        ("round 0", "rank 0 overwrites chunk 0 while sending it"),
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_the_error_says_what_is_wrong(case: tuple[Algorithm, tuple[str, ...]]) -> None:
    plan, words = case
    with pytest.raises(PlanError) as refused:
        verify(plan, 4)
    assert [word for word in words if word not in str(refused.value)] == [], refused.value


def test_a_rank_cannot_send_or_add_to_what_it_does_not_hold() -> None:
    gather = table(ALL_GATHERS["ring"], 4)
    with pytest.raises(PlanError, match="round 0: rank 3 sends chunk 2, which it does not have"):
        verify(planned(gather[1:], 4), 4, Collective.ALL_GATHER.claim)
    adding = planned([[s._replace(reduce=True) for s in row] for row in gather], 4)
    with pytest.raises(PlanError, match="round 0: rank 0 adds to chunk 3, which it does not have"):
        verify(adding, 4, Collective.ALL_GATHER.claim)


THREE = Claim(  # ranks 0 and 1 end with the sum of 0, 1 and 2; rank 3 only stores a copy
    lambda r, c: r < 3, lambda r, c, p: {0, 1, 2} if r < 2 else None
)
LATER = [  # store 0 at rank 3; 0 + 1 at rank 0; then + 2
    messages((0, 3, 0), **PUT),
    messages((1, 0, 0), **ADD),
    messages((2, 0, 0), **ADD),
]


def test_ranks_have_to_sum_in_the_same_order() -> None:
    other = [messages((2, 1, 0), **ADD), messages((3, 1, 0), **ADD)]  # (1 + 2) + 0
    with pytest.raises(PlanError, match="ranks 0 and 1 sum chunk 0 in different orders; let one"):
        verify(planned([*LATER, *other], 1), 4, THREE)


def test_the_operands_of_a_sum_may_be_swapped() -> None:
    same = [messages((3, 1, 0), **ADD), messages((2, 1, 0), **ADD)]  # (1 + 0) + 2
    verify(planned([*LATER, *same], 1), 4, THREE)


def test_whole_buffers_cannot_be_exchanged_in_place() -> None:
    verify(exchange, 2)
    for p in range(3, 9):
        with pytest.raises(
            PlanError, match=r"round \d: rank 0 adds the contribution of rank \d to"
        ):
            verify(exchange, p)


# ---- every plan that differs from a correct one in one number

P = 4
SMALL = {name: ALGORITHMS[name] for name in ("ring", "tree", "halving")}


def _ends(range_: tuple[int, int], most: int) -> Iterator[tuple[int, int]]:
    lo, hi = range_
    yield from ((x, hi) for x in range(-1, most + 1) if x != lo)
    yield from ((lo, x) for x in range(most + 2) if x != hi)


def mutants(rows: Table, chunks: int) -> Iterator[tuple[Table, bool]]:
    """Each table with one number changed, and whether that number is used."""
    for t, row in enumerate(rows):
        for r, s in enumerate(row):
            new = [(s._replace(to=x), True) for x in range(-1, P + 1) if x != s.to]
            new += [(s._replace(source=x), True) for x in range(-1, P + 1) if x != s.source]
            new += [(s._replace(send=x), s.to >= 0) for x in _ends(s.send, chunks)]
            new += [(s._replace(recv=x), s.source >= 0) for x in _ends(s.recv, chunks)]
            for mutant, matters in new:
                yield [*rows[:t], [*row[:r], mutant, *row[r + 1 :]], *rows[t + 1 :]], matters


@pytest.mark.parametrize("plan", SMALL.values(), ids=SMALL)
def test_changing_any_number_that_is_used_breaks_the_plan(plan: Algorithm) -> None:
    chunks = plan.chunks(P)
    seen = 0
    for rows, matters in mutants(table(plan, P), chunks):
        seen += 1
        if not matters:
            verify(planned(rows, chunks), P)
            continue
        with pytest.raises(PlanError):
            verify(planned(rows, chunks), P)
    assert seen > 200


@pytest.mark.parametrize("plan", SMALL.values(), ids=SMALL)
def test_leaving_out_any_message_breaks_the_plan(plan: Algorithm) -> None:
    rows, chunks = table(plan, P), plan.chunks(P)
    sent = [(t, r, s.to) for t, row in enumerate(rows) for r, s in enumerate(row) if s.to >= 0]
    assert len(sent) >= 2 * (P - 1)
    for t, r, to in sent:
        row = list(rows[t])
        row[r], row[to] = row[r]._replace(to=-1), row[to]._replace(source=-1)
        with pytest.raises(PlanError):
            verify(planned([*rows[:t], row, *rows[t + 1 :]], chunks), P)


@pytest.mark.parametrize("name", ["ring", "halving"])
def test_sending_another_chunk_breaks_the_plan(name: str) -> None:
    rows, chunks = table(SMALL[name], P), SMALL[name].chunks(P)
    sent = [(t, r, s) for t, row in enumerate(rows) for r, s in enumerate(row)]
    for t, r, s in sent:
        lo, hi = s.send
        for start in range(chunks - (hi - lo) + 1):
            if start == lo:
                continue
            row = list(rows[t])
            other = (start, start + hi - lo)
            row[r], row[s.to] = s._replace(send=other), row[s.to]._replace(recv=other)
            if s.source == s.to:  # both of its numbers stand in one row of the table
                row[r] = row[r]._replace(recv=s.recv)
            with pytest.raises(PlanError):
                verify(planned([*rows[:t], row, *rows[t + 1 :]], chunks), P)


@pytest.mark.parametrize("plan", SMALL.values(), ids=SMALL)
def test_leaving_out_or_toggling_any_round_breaks_the_plan(plan: Algorithm) -> None:
    rows, chunks = table(plan, P), plan.chunks(P)
    for t, row in enumerate(rows):
        toggled_row = [s._replace(reduce=not s.reduce) for s in row]
        for other in ([], [toggled_row]):
            with pytest.raises(PlanError):
                verify(planned([*rows[:t], *other, *rows[t + 1 :]], chunks), P)


# ---- combinators


def test_a_plan_transposed_twice_is_itself() -> None:
    assert table(transpose(transpose(ring)), 5) == table(ring, 5)
    assert table(transpose(ring), 5) != table(ring, 5)


def test_a_sequence_has_chunks_that_fit_both_parts() -> None:
    both = then(tree, transpose(ring))
    assert both.chunks(6) == 6
    assert both.rounds(6) == tree.rounds(6) + 5
    assert table(both, 6)[0][0].recv == (0, 6)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({0, 1, 2, 3}, "rank 0, chunk 0: the contributions of ranks 2, 3 are missing"),
        ({0, 1, 3}, "rank 0, chunk 0: the contribution of rank 3 is missing"),
        ({0}, "rank 0, chunk 0: the contribution of rank 1 is not wanted"),
    ],
)
def test_the_end_is_compared_with_the_claim(ends: set[int], message: str) -> None:
    claim = Claim(lambda r, c: True, lambda r, c, p: ends if r == 0 else None)
    with pytest.raises(PlanError, match=message):
        verify(planned([messages((1, 0, 0), **ADD)], 1), 4, claim)
