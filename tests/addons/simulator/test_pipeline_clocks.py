"""The command nnmpi.simulate pipeline; bubbles equal their formulas, memory, costs of stages and
messages."""

import json
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.commands import Completed

from nnmpi.addons.simulator.pipeline import Costs, Simulation, simulate, stage_times
from nnmpi.schedules.lists.of_schedule import lists, of_passes
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES

KIND = "pipeline"

SIZE = "--stages 4 --micro-batches 8"


def test_the_report_of_1f1b(simulator: Any) -> None:
    result = simulator("--schedule 1f1b --stages 2 --micro-batches 3 --send 0.5")
    assert (result.status, result.err) == (0, "")
    assert result.out == (
        "1f1b: 2 ranks, 3 micro-batches\n"
        "forward 1, backward 2, send 0.5\n"
        "time      14\n"
        "bubble    0.5556 of the time of computation\n"
        "formula   (p-1)/m = 0.3333\n"
        "\n"
        "rank  busy  idle  micro-batches held  activations held\n"
        "0        9     5                   2                 2\n"
        "1        9     5                   1                 1\n"
        "\n"
        "rank 0  F0- F1- ............B0----- F2- B1----- ........B2-----\n"
        "rank 1  ......F0- B0----- F1- B1----- ....F2- B2----- ..........\n"
        "\n"
        "F forward   B backward   . idle\n"
    )


def test_backward_is_halved_and_stages_are_a_part_of_a_rank(simulator: Any) -> None:
    size = "--stages 1 --micro-batches 2 --forward 3 --backward 8 --json"
    zb = json.loads(simulator(f"--schedule zb-h1 {size}").out)
    three = json.loads(simulator(f"--schedule interleaved --virtual-stages 3 {size}").out)
    assert zb["time"] == 22
    assert three["time"] == pytest.approx(22)
    assert three["virtual_stages"] == 3


def test_where_a_formula_does_not_hold_its_condition_is_told(simulator: Any) -> None:
    out = simulator("--schedule interleaved --stages 4 --micro-batches 6").out
    assert "interleaved, 2 stages a rank: 4 ranks, 6 micro-batches\n" in out
    assert "formula   (p-1)/(V m) holds where p divides m\n" in out
    assert "(p-1)/(3m) holds where m >= p" in simulator(
        "--schedule zb-h1 --stages 4 --micro-batches 2"
    ).out  # fmt: skip


def test_all_schedules_side_by_side(simulator: Any) -> None:
    lines = simulator(f"--compare {SIZE}").out.splitlines()
    assert lines[0] == "pipelines: 4 ranks, 8 micro-batches"
    assert [line.split()[0].strip(",") for line in lines[3:]] == list(SCHEDULES)
    figures = {line.split()[0].strip(","): line.split()[-6:] for line in lines[3:]}
    assert figures["naive"] == ["96", "3", "3", "p-1", "1", "1"]
    assert figures["zb-h1"] == ["27", "0.125", "0.125", "(p-1)/(3m)", "4", "4"]
    assert figures["interleaved"][-2:] == ["11", "5.5"]
    named = simulator(f"--compare zb-h1,naive {SIZE}").out.splitlines()
    assert [line.split()[0] for line in named[3:]] == ["zb-h1", "naive"]


def test_json_has_one_object_or_a_list(simulator: Any) -> None:
    one = json.loads(simulator(f"--schedule gpipe {SIZE} --recompute --json").out)
    assert (one["schedule"], one["ranks"], one["micro_batches"]) == ("gpipe", 4, 8)
    assert one["activations_held"] == [1.0] * 4
    assert one["formula"] == {"formula": "(p-1)/m", "bubble": 0.375}
    rows = json.loads(simulator(f"--compare {SIZE} --json").out)
    assert [row["schedule"] for row in rows] == list(SCHEDULES)
    assert all(row["bubble"] == pytest.approx(row["formula"]["bubble"]) for row in rows)


def test_pictures(simulator: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    assert simulator(f"--schedule 1f1b {SIZE} --svg {file}").status == 0
    assert len(ElementTree.parse(file).findall("{http://www.w3.org/2000/svg}g")) == 4 * 8 * 2
    assert simulator(f"--compare {SIZE} --svg {file}").status == 0
    text = file.read_text(encoding="utf-8")
    assert [name for name in SCHEDULES if f">{name}" not in text] == []
    assert "goes on until 96" in text
    assert simulator(f"--compare gpipe,zb-h1 {SIZE} --svg {file}").status == 0
    text = file.read_text(encoding="utf-8")
    assert (">gpipe: bubble 37.5%" in text, ">naive" in text) == (True, False)


def test_a_picture_that_cannot_be_written(simulator: Any, tmp_path: Path) -> None:
    file = tmp_path / "none" / "a.svg"
    result = simulator(f"--compare {SIZE} --svg {file}")
    line = f"nnmpi.simulate: cannot write {file}: No such file or directory\n"
    assert result == Completed(1, "", line)


RANKS, MICRO_BATCHES = range(1, 9), (*range(1, 18), 24, 31, 32)
CASES = [
    (name, v) for name, s in SCHEDULES.items() for v in ((1, 2, 3) if s.virtual else (s.stages,))
]
EQUAL = stage_times(1, 1, 1)  # F = I = W, in integers: exact


def run(name: str, p: int, m: int, v: int = 1, costs: Costs | None = None) -> Simulation:
    return simulate(lists(SCHEDULES[name], p, m, v), costs or Costs([EQUAL] * (p * v)))


def bubble(result: Simulation) -> Fraction:
    busy = sum(result.busy)
    return Fraction(len(result.busy) * result.makespan - busy, busy)


# ---- formulas


def test_formulas_hold_where_the_literature_says_so() -> None:
    sizes = [(p, m) for p in RANKS for m in MICRO_BATCHES]
    for name, schedule in SCHEDULES.items():
        holds = {(p, m) for p, m in sizes if schedule.bubble(p, m, 1) is not None}
        where = {
            "interleaved": lambda p, m: m % p == 0,
            "zb-h1": lambda p, m: m >= p,
            "zb-v": lambda p, m: m >= 2 * p - 1,
            "v-half": lambda p, m: m > p > 1,
            "dualpipe-v": lambda p, m: m >= 2 * p,
        }
        assert holds == {(p, m) for p, m in sizes if where.get(name, lambda p, m: True)(p, m)}
    assert SCHEDULES["gpipe"].bubble(4, 8, 1) == SCHEDULES["1f1b"].bubble(4, 8, 1) == Fraction(3, 8)
    assert SCHEDULES["interleaved"].bubble(4, 8, 2) == Fraction(3, 16)
    assert SCHEDULES["zb-h1"].bubble(4, 8, 1) == Fraction(1, 8)
    assert SCHEDULES["zb-v"].bubble(4, 8, 2) == SCHEDULES["dualpipe-v"].bubble(4, 8, 2)
    assert SCHEDULES["zb-v"].bubble(4, 8, 2) == Fraction(1, 16)
    assert SCHEDULES["v-half"].bubble(4, 8, 2) == Fraction(10, 48)
    assert SCHEDULES["naive"].bubble(4, 8, 1) == 3


def test_where_a_formula_does_not_hold_the_bubble_differs() -> None:
    for p in RANKS[1:]:
        for m in range(1, p):
            assert bubble(run("zb-h1", p, m)) > Fraction(p - 1, 3 * m)
            assert bubble(run("interleaved", p, m, 2)) > Fraction(p - 1, 2 * m)
            assert bubble(run("zb-v", p, m, 2)) > Fraction(p - 1, 6 * m)
            assert bubble(run("dualpipe-v", p, m, 2)) > Fraction(p - 1, 6 * m)


@pytest.mark.parametrize("p", RANKS)
def test_naive_keeps_all_ranks_but_one_idle_at_any_time(p: int) -> None:
    for m in (1, 2, 7):
        result = run("naive", p, m)
        spans = [s for s in sorted(result.timeline.spans, key=lambda s: s.start) if s.end > s.start]
        assert all(a.end == b.start for a, b in pairwise(spans))
        assert (spans[0].start, spans[-1].end) == (0, result.makespan)


@pytest.mark.parametrize("p", RANKS)
def test_with_an_empty_first_input_gradient_zb_h1_takes_as_long(p: int) -> None:
    """Rank 0 computes 2 units of 3 and idles more; 1F1B gains one unit only."""
    costs = Costs([stage_times(1, 0, 1), *[EQUAL] * (p - 1)])
    for m in (p, p + 1, 2 * p, 32):
        zb, plain = run("zb-h1", p, m, 1, costs), run("1f1b", p, m, 1, costs)
        if p > 1:
            assert zb.makespan == 3 * m + p - 1
            assert plain.makespan == 3 * (m + p - 1) - 1
        assert zb.busy[0] == plain.busy[0] == 2 * m


@pytest.mark.parametrize("m", [1, 2, 4, 16])
def test_recompute_costs_what_except_last_checkpointing_costs(m: int) -> None:
    """3 / (3 + (m-1)/m) of the speed on one rank."""
    again = simulate(lists(SCHEDULES["gpipe"], 1, m, recompute=True), Costs([EQUAL]))
    assert Fraction(3 * m, again.makespan) == 3 / (3 + Fraction(m - 1, m))


# ---- costs


def test_the_slowest_stage_sets_the_pace() -> None:
    costs = Costs([stage_times(1, 1, 1), stage_times(3, 3, 3), stage_times(1, 1, 1)])
    result = run("1f1b", 3, 10, 1, costs)
    assert result.busy == [30, 90, 30]
    assert result.makespan == 1 + 90 + 2  # the first stage starts, and ends
    assert result.bubble == pytest.approx((3 * 93 - 150) / 150)


def test_messages_take_time_and_occupy_nobody() -> None:
    costs = Costs([EQUAL] * 2, send=5)
    result = run("gpipe", 2, 1, 1, costs)
    assert result.makespan == 1 + 5 + 1 + 2 + 5 + 2
    assert result.busy == [3, 3]
    apart = run("gpipe", 2, 4, 1, costs)
    assert apart.makespan == result.makespan + 3 * 3  # several at once


def test_a_message_of_a_rank_to_itself_takes_no_time() -> None:
    assert run("interleaved", 1, 3, 2, Costs([EQUAL] * 2, send=5)).makespan == 3 * 2 * 3


def test_updates_take_time_where_they_have_one() -> None:
    assert run("1f1b", 1, 4, 1, Costs([EQUAL], update=0.5)).makespan == 12.5
    assert run("pipedream", 1, 4, 1, Costs([EQUAL], update=0.5)).makespan == 14


def test_uniform_costs_are_of_a_rank() -> None:
    costs = Costs.uniform(2, 4, forward=2, backward=4, send=1)
    assert costs == Costs([stage_times(0.5, 0.5, 0.5)] * 8, send=1)


# ---- memory


def live_interleaved(p: int, m: int, v: int) -> list[int]:
    """The first 2(p-1-r) + (v-1)p + 1 forward passes, less those of absent micro-batches."""

    def rank(r: int) -> int:
        passes = 2 * (p - 1 - r) + (v - 1) * p + 1
        whole = min(passes, m // p * p * v)  # of groups of p micro-batches
        stages, rest = divmod(passes - whole, p)
        return whole + min(stages * (m % p) + min(rest, m % p), v * (m % p))

    return [rank(r) for r in range(p)]


LIVE: dict[str, Callable[[int, int, int], list[int]]] = {
    "naive": lambda p, m, v: [1] * p,
    "gpipe": lambda p, m, v: [m] * p,
    "1f1b": lambda p, m, v: [min(p - r, m) for r in range(p)],
    "interleaved": live_interleaved,
    "zb-h1": lambda p, m, v: [min(p, m)] * p,
    "zb-v": lambda p, m, v: [min(2 * m, m + 1 + r, 2 * p) for r in range(p)],
    "v-half": lambda p, m, v: [min(2 * m, m + 1 + r // 2, p // 2 * 2 + 2) for r in range(p)],
    "dualpipe-v": lambda p, m, v: [min(2 * m, m + 1 + r, 2 * p + 1) for r in range(p)],
    "pipedream": lambda p, m, v: [min(p - r, m) for r in range(p)],
}
"""From p, m and v to the most micro-batches that each rank holds, as the literature says."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(("name", "v"), CASES)
def test_bubble_and_memory_are_those_of_the_formulas(name: str, v: int, p: int) -> None:
    for m in MICRO_BATCHES:
        result, formula = run(name, p, m, v), SCHEDULES[name].bubble(p, m, v)
        assert formula is None or bubble(result) == formula, m
        assert result.live == LIVE[name](p, m, v), m
        assert result.memory == pytest.approx([n / v for n in result.live]), m


def test_memory_of_stages_that_differ() -> None:
    steps = lists(SCHEDULES["interleaved"], 1, 2, 2)
    assert [*map(str, steps[0].passes[:4])] == ["F0.0", "F1.0", "B1.0", "F0.1"]
    for activation, most in (([100, 1], 200), ([1, 100], 101)):
        result = simulate(steps, Costs([EQUAL] * 2), activation)
        assert (result.memory, result.live) == ([most], [2])


def test_recompute_keeps_one_micro_batch_in_full_and_the_inputs_of_all() -> None:
    ops = lists(SCHEDULES["gpipe"], 2, 8, recompute=True)
    result = simulate(ops, Costs.uniform(2))
    assert (result.memory, result.live) == ([1, 1], [8, 8])
    result = simulate(ops, Costs.uniform(2), [1, 2], inputs=[0.25, 0.5])
    assert result.memory == [1 + 7 * 0.25, 2 + 7 * 0.5]


# ---- what cannot be


def test_a_deadlock_is_an_error() -> None:
    compute = SCHEDULES["1f1b"].compute(2, 2, 1)
    compute[0] = [Op(k, i, 0) for i in (0, 1) for k in (Kind.F, Kind.B)]
    compute[1] = [Op(k, i, 1) for k in (Kind.F, Kind.B) for i in (0, 1)]
    steps = of_passes(compute, (0, 1), 2)
    with pytest.raises(ScheduleError, match=r"deadlock: ranks wait at B0\.0"):
        simulate(steps, Costs.uniform(2))
