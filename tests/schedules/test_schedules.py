"""Schedules of pipelines: proof of every size, what the literature says of them, broken ones."""

from collections.abc import Callable

import pytest

from nnmpi.schedules.lowering import boundary, forward_programs, lower, programs, stream
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.placement import Placement, in_v, round_robin
from nnmpi.schedules.proof import ScheduleError, prove

RANKS, MICRO_BATCHES = range(1, 9), (*range(1, 18), 24, 31, 32)
CASES = [
    (name, v) for name, s in SCHEDULES.items() for v in ((1, 2, 3) if s.virtual else (s.stages,))
]
SENDS, RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)

Programs = list[list[Op]]
TWO = (0, 1)  # a stage on each of two ranks


def computation(ops: list[Op]) -> list[Op]:
    return [op for op in ops if op.kind not in SENDS + RECEIVES]


def text(ops: list[Op]) -> str:
    return " ".join(map(str, ops))


# ---- proof


@pytest.mark.one_in(2)
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(("name", "v"), CASES)
def test_every_program_is_proved(name: str, v: int, p: int) -> None:
    for m in MICRO_BATCHES:
        prove(programs(SCHEDULES[name], p, m, v), SCHEDULES[name].place(p, v), m)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize(("name", "v"), CASES)
def test_programs_that_recompute_are_proved(name: str, v: int, m: int) -> None:
    for p in RANKS:
        ranks = programs(SCHEDULES[name], p, m, v, recompute=True)
        prove(ranks, SCHEDULES[name].place(p, v), m)
        plain = [[op for op in ops if op.kind is not Kind.RECOMPUTE] for ops in ranks]
        assert plain == programs(SCHEDULES[name], p, m, v)


@pytest.mark.parametrize(("placement", "v"), [(round_robin, 1), (round_robin, 3), (in_v, 2)])
def test_evaluation_is_proved(placement: Placement, v: int) -> None:
    for p in RANKS:
        for m in (1, 2, 5, 8, 13, 32):
            ranks = forward_programs(place := placement(p, v), m)
            prove(ranks, place, m, backward=False)
            kinds = {op.kind for ops in ranks for op in ops}
            assert kinds <= {Kind.F, Kind.RECV_F, Kind.SEND_F}


# ---- orders of the literature


def test_orders() -> None:
    def order(name: str, p: int, m: int, rank: int, v: int = 1) -> str:
        return text(SCHEDULES[name].compute(p, m, v)[rank])

    assert order("naive", 2, 2, 0) == "F0 B0 F1 B1"
    assert order("gpipe", 2, 3, 0) == "F0 F1 F2 B2 B1 B0"
    assert order("1f1b", 3, 4, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order("1f1b", 3, 4, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert order("zb-h1", 2, 3, 0) == "F0 F1 I0 W0 F2 I1 W1 I2 W2"
    assert order("zb-h1", 2, 3, 1) == "F0 I0 F1 I1 W0 F2 I2 W1 W2"
    assert order("1f1b", 1, 2, 0) == "F0 B0 F1 B1"
    assert order("zb-v", 2, 3, 0, 2) == "F0 F1 F2 F0 I0 W0 F1 I1 W1 I0 W0 F2 I2 W2 I1 W1 I2 W2"
    assert order("zb-v", 2, 1, 1, 2) == "F0 F0 I0 W0 I0 W0"
    assert order("v-half", 2, 2, 1, 2) == "F0 F0 F1 I0 W0 F1 I0 I1 W1 W0 I1 W1"
    assert order("dualpipe-v", 1, 3, 0, 2) == "F0 F0 F1 B0 F1 B0 F2 B1 F2 B1 B2 I2 W2"


def test_the_interleaved_order_is_that_of_megatron() -> None:
    """Figure 4 of Narayanan et al. (2021): 4 ranks, 8 micro-batches, 2 stages a rank."""
    last = SCHEDULES["interleaved"].compute(4, 8, 2)[3]
    stages = [f"{op}/{op.stage}" for op in last[:8]]
    assert stages == ["F0/3", "F1/3", "F2/3", "F3/3", "F0/7", "B0/7", "F1/7", "B1/7"]
    first = SCHEDULES["interleaved"].compute(4, 8, 2)[0]
    assert text(first[:12]) == "F0 F1 F2 F3 F0 F1 F2 F3 F4 F5 F6 B0"
    assert [op.stage for op in first[:12]] == [0] * 4 + [4] * 4 + [0] * 3 + [4]


def test_micro_batches_that_do_not_exist_are_left_out() -> None:
    whole = SCHEDULES["interleaved"].compute(4, 8, 2)
    assert SCHEDULES["interleaved"].compute(4, 6, 2) == [
        [op for op in ops if op.micro < 6] for ops in whole
    ]


# ---- lowering


def test_a_program_has_messages_one_note_and_one_update() -> None:
    first, last = programs(SCHEDULES["1f1b"], 2, 2)
    assert text(first) == "F0 SEND_F0 RECV_B0 F1 SEND_F1 RECV_B1 B0 NOTE B1 APPLY"
    assert text(last) == "RECV_F0 F0 RECV_F1 B0 SEND_B0 F1 NOTE B1 SEND_B1 APPLY"
    assert [op.peer for op in first if op.kind in SENDS + RECEIVES] == [1, 1, 1, 1]
    assert [op.peer for op in last if op.kind in SENDS + RECEIVES] == [0] * 4
    assert {op.peer for ops in (first, last) for op in ops if op.kind in (Kind.F, Kind.B)} == {-1}


def test_nothing_is_sent_between_stages_of_one_rank() -> None:
    assert text(programs(SCHEDULES["1f1b"], 1, 2, 1)[0]) == "F0 B0 F1 NOTE B1 APPLY"
    assert text(programs(SCHEDULES["interleaved"], 1, 1, 2)[0]) == "F0 F0 NOTE B0 B0 APPLY"
    first, last = programs(SCHEDULES["v-half"], 2, 1, 2)
    assert text(last) == "RECV_F0 F0 RECV_B0 F0 SEND_F0 I0 NOTE W0 I0 SEND_B0 W0 APPLY"
    assert {op.peer for op in last if op.kind in SENDS + RECEIVES} == {0}
    assert text(first) == "RECV_F0 F0 SEND_F0 F0 I0 SEND_B0 RECV_B0 NOTE W0 I0 W0 APPLY"


def test_the_boundary_of_a_message() -> None:
    sent = [op for ops in programs(SCHEDULES["gpipe"], 3, 1) for op in ops if op.kind in SENDS]
    assert [(str(op), boundary(op)) for op in sent] == [
        ("SEND_F0", 0), ("SEND_F0", 1), ("SEND_B0", 0), ("SEND_B0", 1),
    ]  # fmt: skip


def test_the_note_comes_before_the_first_gradient_that_becomes_final() -> None:
    ops = programs(SCHEDULES["zb-h1"], 3, 4, 1)[2]
    assert text(ops).endswith("W1 W2 NOTE W3 APPLY")
    ops = programs(SCHEDULES["interleaved"], 2, 2, 2)[1]
    at = [str(op) for op in ops].index("NOTE")
    assert (str(ops[at + 1]), ops[at + 1].stage) == ("B1", 3)  # before those of stage 1


def test_recompute_spares_the_micro_batch_that_is_still_there() -> None:
    gpipe = text(programs(SCHEDULES["gpipe"], 2, 3, 1, recompute=True)[0])
    assert "RECOMPUTE2" not in gpipe
    assert "NOTE RECOMPUTE0 B0" in gpipe
    assert gpipe.count("RECOMPUTE") == 2
    last = programs(SCHEDULES["1f1b"], 2, 3, 1, recompute=True)[1]
    assert Kind.RECOMPUTE not in {op.kind for op in last}


# ---- PipeDream


def test_pipedream_updates_after_every_micro_batch_and_has_no_note() -> None:
    ops = programs(SCHEDULES["pipedream"], 2, 2, 1)[1]
    assert text(ops) == (
        "RECV_F0 F0 RECV_F1 B0 SEND_B0 APPLY0 F1 B1 SEND_B1 APPLY1"
    )  # the gradient leaves before the update


@pytest.mark.parametrize("p", RANKS)
def test_pipedream_computes_on_weights_that_are_p_minus_1_minus_s_updates_old(p: int) -> None:
    for m in MICRO_BATCHES:
        for s, ops in enumerate(programs(SCHEDULES["pipedream"], p, m)):
            updates, used = 0, []
            for op in ops:
                if op.kind is Kind.F:
                    used.append(updates)
                updates += op.kind is Kind.APPLY
            assert used == [max(0, i - (p - 1 - s)) for i in range(m)]


@pytest.mark.parametrize("p", RANKS)
def test_a_stream_has_the_passes_of_pipedream_and_the_messages_of_1f1b(p: int) -> None:
    for m in MICRO_BATCHES:
        passes, flushed = SCHEDULES["pipedream"].compute(p, m, 1), programs(SCHEDULES["1f1b"], p, m)
        for r in range(p):
            ops = list(stream(p, r, lambda m=m: m - 1))
            updates = (Kind.NOTE, Kind.APPLY)
            assert [op for op in computation(ops) if op.kind not in updates] == passes[r]
            assert [op for op in ops if op.kind not in updates] == [
                op for op in flushed[r] if op.kind not in updates
            ]
            for i, op in enumerate(ops):
                if op.kind is Kind.APPLY:
                    assert ops[i - 1] == Op(Kind.SEND_B if r else Kind.B, op.micro, r, r - 1)


@pytest.mark.parametrize("p", RANKS)
def test_a_stream_may_end_behind_what_its_first_stage_has_started(p: int) -> None:
    """All stages learn in the backward pass of one micro-batch that the run ends."""
    for decided in (0, 1, p, 9):
        ranks = []
        for r in range(p):
            last, done = [31], list[Op]()
            for op in stream(p, r, lambda last=last: last[0]):
                done.append(op)
                if op == Op(Kind.B, decided, r):
                    last[0] = decided + p - 1
            wanted = programs(SCHEDULES["pipedream"], p, decided + p, 1)[r]
            assert done == wanted or r == 0
            assert computation(done) == computation(wanted)
            ranks.append(done)
        prove(ranks, range(p), decided + p)


# ---- broken programs


def without(ranks: Programs, rank: int, op: str) -> None:
    ranks[rank] = [o for o in ranks[rank] if str(o) != op]


def swapped(ranks: Programs, rank: int, a: str, b: str) -> None:
    names = [str(op) for op in ranks[rank]]
    i, j = names.index(a), names.index(b)
    ranks[rank][i], ranks[rank][j] = ranks[rank][j], ranks[rank][i]


def repeated(ranks: Programs, rank: int, op: str) -> None:
    at = [str(o) for o in ranks[rank]].index(op)
    ranks[rank].insert(at + 1, ranks[rank][at])


def misdirected(ranks: Programs, rank: int, op: str) -> None:
    ranks[rank] = [o._replace(peer=2) if str(o) == op else o for o in ranks[rank]]


BROKEN: dict[str, tuple[Callable[[Programs], None], str]] = {
    "no forward": (
        lambda r: without(r, 1, "F1"),
        "rank 1 cannot run SEND_F1 of stage 1: F1 has not run before it",
    ),
    "no backward": (
        lambda r: without(r, 1, "B1"),
        "rank 1 cannot run SEND_B1 of stage 1: B1 has not run before it",
    ),
    "no backward on the first stage": (
        lambda r: without(r, 0, "B1"), "rank 0 cannot run APPLY: B1 of stage 0 has not run"
    ),
    "no receive": (
        lambda r: without(r, 2, "RECV_F1"),
        "rank 2 cannot run F1 of stage 2: RECV_F1 has not run before it",
    ),
    "no send": (
        lambda r: without(r, 0, "SEND_F2"),
        "rank 1 cannot run F2 of stage 1: its message .* send 3 is for micro-batch 3",
    ),
    "no last send": (
        lambda r: without(r, 0, "SEND_F3"),
        "deadlock: rank 0 cannot run B2 of stage 0, rank 1 cannot run F3 of stage 1, rank 2",
    ),
    "no note": (lambda r: without(r, 1, "NOTE"), "rank 1 cannot run APPLY: NOTE has not"),
    "no update": (lambda r: without(r, 2, "APPLY"), "rank 2 has no APPLY"),
    "a forward twice": (
        lambda r: repeated(r, 1, "F1"),
        "rank 1 cannot run F1 of stage 1: F1 has run before it",
    ),
    "a send twice": (
        lambda r: repeated(r, 1, "SEND_B0"),
        "rank 1 cannot run SEND_B0 of stage 1: SEND_B0 has run",
    ),
    "an update twice": (lambda r: repeated(r, 0, "APPLY"), "rank 0 cannot run APPLY: it has run"),
    "backward before forward": (
        lambda r: swapped(r, 2, "F0", "B0"),
        "rank 2 cannot run B0 of stage 2: F0 has not run before it",
    ),
    "a gradient sent before it is there": (
        lambda r: swapped(r, 1, "B0", "SEND_B0"), "rank 1 cannot run SEND_B0 of stage 1: B0 has not"
    ),
    "a late note": (
        lambda r: swapped(r, 0, "B3", "NOTE"),
        "rank 0 cannot run NOTE: the gradients of stage 0 are final already",
    ),
    "an early note": (
        lambda r: swapped(r, 2, "F3", "NOTE"), "rank 2 cannot run NOTE: losses are missing"
    ),
    "an early update": (
        lambda r: swapped(r, 0, "B3", "APPLY"), "rank 0 cannot run APPLY: B3 of stage 0 has"
    ),
    "a message to the wrong rank": (
        lambda r: misdirected(r, 0, "SEND_F1"),
        "rank 0 cannot run SEND_F1 of stage 0: the stage on the other side is on rank 1, not on",
    ),
    "a receive across no boundary": (
        lambda r: r[0].insert(0, Op(Kind.RECV_F, 0, 0, 2)),
        "rank 0 cannot run RECV_F0 of stage 0: there is no stage of another",
    ),
    "a stage of another rank": (
        lambda r: r[0].insert(0, Op(Kind.F, 0, 1)),
        "rank 0 cannot run F0 of stage 1: it has no such stage",
    ),
    "an operation of lists": (
        lambda r: r[0].insert(1, Op(Kind.GATHER, 0, 0)),
        "rank 0 cannot run GATHER0 of stage 0: no schedule has such an operation",
    ),
    "a micro-batch too many": (
        lambda r: r[0].insert(0, Op(Kind.F, 4, 0)),
        "rank 0 cannot run F4 of stage 0: .*no such micro-batch",
    ),
    "receives in another order": (
        lambda r: swapped(r, 1, "RECV_F0", "RECV_F1"),
        "rank 1 cannot run F0 of stage 1: its message is received as number 2 of its boundary and "
        "direction, but send 2 is for micro-batch 1",
    ),
    "sends in another order": (
        lambda r: swapped(r, 0, "SEND_F0", "SEND_F1"),
        "rank 0 cannot run SEND_F1 of stage 0: F1 has not run before it",
    ),
    "recompute after the backward": (
        lambda r: r[2].insert(-1, Op(Kind.RECOMPUTE, 1, 2)),
        "rank 2 cannot run RECOMPUTE1 of stage 2: B1 has run before it",
    ),
    "a rank too few": (lambda r: r.pop() and None, "deadlock: .*rank 1 cannot run B0 of stage 1"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_programs_are_rejected(spoil: Callable[[Programs], None], message: str) -> None:
    ranks = programs(SCHEDULES["1f1b"], 3, 4)
    prove(ranks, (0, 1, 2), 4)
    spoil(ranks)
    with pytest.raises(ScheduleError, match=message):
        prove(ranks, (0, 1, 2), 4)


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    """Rank 0 wants gradients of micro-batch 1 first, rank 1 its activation of 1 after B0."""
    compute = SCHEDULES["1f1b"].compute(2, 2, 1)
    compute[0] = [Op(Kind.F, 0), Op(Kind.B, 0), Op(Kind.F, 1), Op(Kind.B, 1)]
    prove(lower(compute, TWO), TWO, 2)  # slower, but no deadlock
    compute[1] = [Op(k, i, 1) for k in (Kind.F, Kind.B) for i in (0, 1)]
    message = "deadlock: rank 0 cannot run B0 of stage 0, rank 1 cannot run F1 of stage 1: no mess"
    with pytest.raises(ScheduleError, match=message):
        prove(lower(compute, TWO), TWO, 2)


def test_gradients_sent_in_another_order_than_received() -> None:
    compute = SCHEDULES["gpipe"].compute(2, 2, 1)
    compute[1] = [Op(k, i, 1) for k in (Kind.F, Kind.B) for i in (0, 1)]
    message = "rank 0 cannot run B1 of stage 0: its message is received as number 1 .*batch 0"
    with pytest.raises(ScheduleError, match=message):
        prove(lower(compute, TWO), TWO, 2)


@pytest.mark.parametrize(("a", "b", "needed"), [(0, 1, "F0"), (2, 4, "B0")])
def test_stages_of_one_rank_need_each_other_too(a: int, b: int, needed: str) -> None:
    compute = SCHEDULES["v-half"].compute(2, 1, 2)
    assert text(compute[1]) == "F0 F0 I0 W0 I0 W0"
    ops, place = compute[1], in_v(2, 2)
    ops[a], ops[b] = ops[b], ops[a]
    message = rf"rank 1 cannot run {ops[a]} of stage {ops[a].stage}: {needed} of stage \d has not"
    with pytest.raises(ScheduleError, match=message):
        prove(lower(compute, place), place, 1)


def test_half_a_backward_pass_is_not_enough() -> None:
    compute = SCHEDULES["zb-h1"].compute(1, 2, 1)
    ops = [op for op in lower(compute, (0,))[0] if str(op) != "W0"]
    with pytest.raises(ScheduleError, match="rank 0 cannot run APPLY: W0 of stage 0 has not run"):
        prove([ops], (0,), 2)
    both = lower([[*compute[0][:-1], Op(Kind.B, 0), compute[0][-1]]], (0,))
    with pytest.raises(ScheduleError, match="rank 0 cannot run B0 of stage 0: I0 has run before"):
        prove(both, (0,), 2)


# ---- numbers that make no pipeline


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("1f1b", (0, 1, 1), "at least 1 of stages, got 0"),
        ("1f1b", (1, 0, 1), "at least 1 of micro-batches, got 0"),
        ("interleaved", (2, 2, 0), "at least 1 of virtual stages, got 0"),
        ("gpipe", (2, 2, 2), "one stage a rank, got 2 virtual stages"),
        ("zb-v", (2, 2, 3), "2 stages a rank, got 3 virtual stages"),
    ],
)
def test_what_is_no_pipeline_is_refused(
    name: str, numbers: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        programs(SCHEDULES[name], *numbers)
