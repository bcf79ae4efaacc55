"""Schedules of pipelines: proof of every size, what the literature says of them, broken ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.of_schedule import lists, of_passes
from nnmpi.schedules.lists.of_user import prove_passes
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError, StepList, evaluation_list
from nnmpi.schedules.lists.stream import stream
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.placement import Placement, in_v, round_robin

RANKS, MICRO_BATCHES = range(1, 9), (*range(1, 18), 24, 31, 32)
CASES = [
    (name, v) for name, s in SCHEDULES.items() for v in ((1, 2, 3) if s.virtual else (s.stages,))
]
SENDS, RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)

TWO = (0, 1)  # a stage on each of two ranks


def computation(ops: list[Op]) -> list[Op]:
    return [op for op in ops if op.kind not in SENDS + RECEIVES]


def text(ops: list[Op] | tuple[Op, ...]) -> str:
    return " ".join(map(str, ops))


def proved(steps: list[StepList]) -> None:
    prove([[step] for step in steps])


# ---- proof


@pytest.mark.one_in(2)
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(("name", "v"), CASES)
def test_every_list_is_proved(name: str, v: int, p: int) -> None:
    for m in MICRO_BATCHES:
        proved(lists(SCHEDULES[name], p, m, v))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize(("name", "v"), CASES)
def test_lists_that_recompute_are_proved(name: str, v: int, m: int) -> None:
    for p in RANKS:
        steps = lists(SCHEDULES[name], p, m, v, recompute=True)
        proved(steps)
        plain = [tuple(op for op in s.ops if op.kind is not Kind.RECOMPUTE) for s in steps]
        assert plain == [step.ops for step in lists(SCHEDULES[name], p, m, v)]
        if p > 1 and m > 1 and name != "naive":  # there, each backward pass follows its own
            assert any(op.kind is Kind.RECOMPUTE for op in steps[0].ops)


@pytest.mark.parametrize(("placement", "v"), [(round_robin, 1), (round_robin, 3), (in_v, 2)])
def test_evaluation_is_proved(placement: Placement, v: int) -> None:
    for p in RANKS:
        chains = [Chain.of_whole_stages(placement(p, v), r) for r in range(p)]
        for m in (1, 2, 5, 8, 13, 32):
            steps = [evaluation_list(chain, m, p) for chain in chains]
            proved(steps)
            kinds = {op.kind for step in steps for op in step.ops}
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


# ---- lists


def test_a_list_has_messages_one_note_and_one_update() -> None:
    first, last = (step.ops for step in lists(SCHEDULES["1f1b"], 2, 2))
    assert text(first) == (
        "F0.0 SEND_F1.0 RECV_B1.0 F0.1 NOTE SEND_F1.1 RECV_B1.1 B0.0 B0.1 AGREE APPLY"
    )
    assert text(last) == (
        "RECV_F1.0 F0.0 RECV_F1.1 B0.0 SEND_B1.0 F0.1 NOTE B0.1 SEND_B1.1 AGREE APPLY"
    )
    assert [op.peer for op in first if op.kind in SENDS + RECEIVES] == [1, 1, 1, 1]
    assert [op.peer for op in last if op.kind in SENDS + RECEIVES] == [0] * 4
    assert {op.peer for ops in (first, last) for op in ops if op.kind in (Kind.F, Kind.B)} == {-1}


def test_nothing_is_sent_between_stages_of_one_rank() -> None:
    assert text(lists(SCHEDULES["1f1b"], 1, 2, 1)[0].ops) == "F0.0 B0.0 F0.1 NOTE B0.1 AGREE APPLY"
    both = lists(SCHEDULES["interleaved"], 1, 1, 2)[0]
    assert text(both.ops) == "F0.0 F1.0 NOTE B1.0 B0.0 AGREE APPLY"
    first, last = lists(SCHEDULES["v-half"], 2, 1, 2)
    assert text(last.ops) == (
        "RECV_F1.0 F0.0 RECV_B3.0 F1.0 NOTE SEND_F3.0 I1.0 W1.0 I0.0 SEND_B1.0 W0.0 AGREE APPLY"
    )
    assert {op.peer for op in last.ops if op.kind in SENDS + RECEIVES} == {0}
    assert text(first.ops) == (
        "RECV_F3.0 F0.0 SEND_F1.0 F1.0 NOTE I1.0 SEND_B3.0 RECV_B1.0 W1.0 I0.0 W0.0 AGREE APPLY"
    )


def test_a_message_has_the_stage_behind_its_boundary() -> None:
    sent = [op for s in lists(SCHEDULES["gpipe"], 3, 1) for op in s.ops if op.kind in SENDS]
    assert [(op.kind, op.at) for op in sent] == [
        (Kind.SEND_F, 1), (Kind.SEND_F, 2), (Kind.SEND_B, 1), (Kind.SEND_B, 2),
    ]  # fmt: skip


def test_recompute_spares_the_micro_batch_that_is_still_there() -> None:
    gpipe = text(lists(SCHEDULES["gpipe"], 2, 3, 1, recompute=True)[0].ops)
    assert "RECOMPUTE0.2" not in gpipe
    assert "RECOMPUTE0.0 B0.0" in gpipe
    assert gpipe.count("RECOMPUTE") == 2
    last = lists(SCHEDULES["1f1b"], 2, 3, 1, recompute=True)[1]
    assert Kind.RECOMPUTE not in {op.kind for op in last.ops}


# ---- PipeDream


def test_pipedream_updates_after_every_micro_batch_and_has_no_note() -> None:
    ops = lists(SCHEDULES["pipedream"], 2, 2, 1)[1].ops
    assert text(ops) == (
        "RECV_F1.0 F0.0 RECV_F1.1 B0.0 SEND_B1.0 APPLY0 F0.1 B0.1 SEND_B1.1 APPLY1"
    )  # the gradient leaves before the update


@pytest.mark.parametrize("p", RANKS)
def test_pipedream_computes_on_weights_that_are_p_minus_1_minus_s_updates_old(p: int) -> None:
    for m in MICRO_BATCHES:
        for s, step in enumerate(lists(SCHEDULES["pipedream"], p, m)):
            updates, used = 0, []
            for op in step.ops:
                if op.kind is Kind.F:
                    used.append(updates)
                updates += op.kind is Kind.APPLY
            assert used == [max(0, i - (p - 1 - s)) for i in range(m)]


@pytest.mark.parametrize("p", RANKS)
def test_a_stream_has_the_passes_of_pipedream_and_the_messages_of_1f1b(p: int) -> None:
    for m in MICRO_BATCHES:
        passes, flushed = SCHEDULES["pipedream"].compute(p, m, 1), lists(SCHEDULES["1f1b"], p, m)
        for r in range(p):
            ops = list(stream(Chain.of_whole_stages(range(p), r), lambda m=m: m - 1))
            updates = (Kind.NOTE, Kind.AGREE, Kind.APPLY)
            computed = [op for op in computation(ops) if op.kind not in updates]
            assert [op[:3] for op in computed] == [op[:3] for op in passes[r]]
            assert [op for op in ops if op.kind not in updates] == [
                op for op in flushed[r].ops if op.kind not in updates
            ]
            for i, op in enumerate(ops):
                if op.kind is Kind.APPLY:
                    before = Kind.SEND_B if r else Kind.B
                    assert (ops[i - 1].kind, ops[i - 1].micro) == (before, op.micro)


@pytest.mark.parametrize("p", RANKS)
def test_a_stream_may_end_behind_what_its_first_stage_has_started(p: int) -> None:
    """All stages learn in the backward pass of one micro-batch that the run ends."""
    for decided in (0, 1, p, 9):
        steps = []
        for r, wanted in enumerate(lists(SCHEDULES["pipedream"], p, decided + p, 1)):
            last, done = [31], list[Op]()
            for op in stream(wanted.chain, lambda last=last: last[0]):
                done.append(op)
                if (op.kind, op.micro) == (Kind.B, decided):
                    last[0] = decided + p - 1
            assert tuple(done) == wanted.ops or r == 0
            assert computation(done) == computation([*wanted.ops])
            steps.append(replace(wanted, ops=(*done,)))
        proved(steps)


# ---- broken lists


def without(steps: list[StepList], rank: int, op: str) -> None:
    steps[rank] = replace(steps[rank], ops=tuple(o for o in steps[rank].ops if str(o) != op))


def swapped(steps: list[StepList], rank: int, a: str, b: str) -> None:
    ops = [*steps[rank].ops]
    i, j = ([*map(str, ops)].index(name) for name in (a, b))
    ops[i], ops[j] = ops[j], ops[i]
    steps[rank] = replace(steps[rank], ops=(*ops,))


BROKEN: dict[str, tuple[Callable[[list[StepList]], None], str]] = {
    "no forward": (
        lambda s: without(s, 1, "F0.1"), "pp 1, operation 5, SEND_F2.1: what it sends is not there"
    ),
    "no receive": (
        lambda s: without(s, 2, "RECV_F2.1"), "pp 2, operation 4, F0.1: RECV_F2.1 was not posted"
    ),
    "no send": (lambda s: without(s, 0, "SEND_F1.2"), "pp 0: SEND_F1.2 is missing"),
    "no note": (lambda s: without(s, 1, "NOTE"), "pp 1, operation 24, AGREE: the loss"),
    "no update": (lambda s: without(s, 2, "APPLY"), "pp 2: the step does not end with an update"),
    "an early update": (
        lambda s: swapped(s, 0, "B0.3", "AGREE"), "pp 0, operation 17, B0.3: comes after"
    ),
    "receives in another order": (
        lambda s: swapped(s, 1, "RECV_F1.0", "RECV_F1.1"), "F at boundary 1: sent are"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_lists_are_refused(spoil: Callable[[list[StepList]], None], message: str) -> None:
    steps = lists(SCHEDULES["1f1b"], 3, 4)
    proved(steps)
    spoil(steps)
    with pytest.raises(ScheduleError, match=message):
        proved(steps)


# ---- broken schedules


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    """Rank 0 wants gradients of micro-batch 1 first, rank 1 its activation of 1 after B0."""
    compute = SCHEDULES["1f1b"].compute(2, 2, 1)
    compute[0] = [Op(k, i, 0) for i in (0, 1) for k in (Kind.F, Kind.B)]
    prove_passes(compute, TWO, 2)  # slower, but no deadlock
    compute[1] = [Op(k, i, 1) for k in (Kind.F, Kind.B) for i in (0, 1)]
    message = r"deadlock: ranks wait at B0.0 \(pp 0, dp 0\), F0.1 \(pp 1, dp 0\)"
    with pytest.raises(ScheduleError, match=message):
        prove_passes(compute, TWO, 2)


def test_gradients_sent_in_another_order_than_received() -> None:
    compute = SCHEDULES["gpipe"].compute(2, 2, 1)
    compute[1] = [Op(k, i, 1) for k in (Kind.F, Kind.B) for i in (0, 1)]
    message = r"B at boundary 1: sent are \[0, 1\], received \[1, 0\]"
    with pytest.raises(ScheduleError, match=message):
        prove_passes(compute, TWO, 2)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [(0, 1, "F1.0: the output of unit 0 is not"), (2, 4, "I0.0: the gradient from unit 1 is not")],
)
def test_stages_of_one_rank_need_each_other_too(a: int, b: int, message: str) -> None:
    forward = [Op(Kind.F, 0, stage) for stage in (0, 1)]
    ops = [*forward, *(Op(kind, 0, s) for s in (1, 0) for kind in (Kind.I, Kind.W))]
    prove_passes([ops], (0, 0), 1)
    ops[a], ops[b] = ops[b], ops[a]
    with pytest.raises(ScheduleError, match=message):
        proved(of_passes([ops], (0, 0), 1))


INCOMPLETE = {
    "W0": "the backward pass of micro-batch 0 through stage 0 is missing",
    "W1": "the backward pass of micro-batch 1 through stage 0 is missing",
    "I0": "W0.0: comes after F",
    "F1": "I0.1: comes after nothing",
}


@pytest.mark.parametrize(("name", "message"), INCOMPLETE.items(), ids=INCOMPLETE)
def test_a_pass_that_is_missing_is_named(name: str, message: str) -> None:
    compute = SCHEDULES["zb-h1"].compute(1, 2, 1)
    prove_passes(compute, (0,), 2)
    with pytest.raises(ScheduleError, match=message):
        proved(of_passes([[op for op in compute[0] if str(op) != name]], (0,), 2))


def test_a_backward_pass_and_its_halves_are_too_much() -> None:
    compute = SCHEDULES["zb-h1"].compute(1, 2, 1)
    with pytest.raises(ScheduleError, match=r"B0\.0: comes after I"):
        proved(of_passes([[*compute[0][:2], Op(Kind.B, 0, 0), *compute[0][2:]]], (0,), 2))


FOREIGN = {
    "a stage of another rank": (Op(Kind.F, 0, 1), "rank 0 cannot run F0 of stage 1: the stages"),
    "a micro-batch too many": (Op(Kind.F, 4, 0), "rank 0 cannot run F4 of stage 0: the stages"),
    "no pass": (Op(Kind.GATHER, 0, 0), "must have the kind Kind.F, Kind.B, Kind.I or Kind.W"),
}


@pytest.mark.parametrize(("op", "message"), FOREIGN.values(), ids=FOREIGN)
def test_what_no_schedule_has_is_refused(op: Op, message: str) -> None:
    compute = SCHEDULES["1f1b"].compute(3, 4, 1)
    prove_passes(compute, (0, 1, 2), 4)
    with pytest.raises(ScheduleError, match=message):
        prove_passes([[op, *compute[0]], *compute[1:]], (0, 1, 2), 4)


def test_a_forward_pass_that_runs_twice_is_refused() -> None:
    compute = SCHEDULES["1f1b"].compute(3, 4, 1)
    with pytest.raises(ScheduleError, match=r"F0\.1: runs twice"):
        proved(of_passes([[Op(Kind.F, 1, 0), *compute[0]], *compute[1:]], (0, 1, 2), 4))


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
        lists(SCHEDULES[name], *numbers)
