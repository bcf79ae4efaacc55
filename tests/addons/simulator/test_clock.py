"""The clock of lists: lanes, what operations wait for, and links that several need."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from nnmpi.addons.simulator.clock import FREE, Cost, Timing, carried_out, timed
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES


class Named(NamedTuple):
    """An operation: its name is the key of its timing."""

    name: str
    micro: int = 0


def ends(lists: list[list[str]], timings: dict[str, Timing]) -> dict[str, tuple[float, float]]:
    ops = [[Named(name) for name in names] for names in lists]
    return {
        op.name: (start, end) for _, op, _, start, end in timed(ops, lambda r, op: timings[op.name])
    }


def test_a_lane_goes_on_beside_the_rank_first_in_first_out() -> None:
    given: list[dict[int, float]] = [{}, {}]
    timings = {
        "B1": Timing(Cost(2.0)),
        "SUM1": Timing(Cost(5.0, "link"), given=given[0]),
        "B0": Timing(Cost(1.0)),
        "SUM0": Timing(Cost(1.0, "link"), given=given[1]),
        "FINISH1": Timing(Cost(0.0), awaited=given[0]),
        "FINISH0": Timing(Cost(0.0), awaited=given[1]),
    }
    found = ends([[*timings]], timings)
    assert found["B0"] == (2, 3)
    assert found["SUM1"] == (2, 7)
    assert found["SUM0"] == (7, 8)
    assert found["FINISH0"] == (8, 8)


def test_on_a_free_lane_nothing_waits() -> None:
    timings = {name: Timing(Cost(3.0, FREE)) for name in ("a", "b")}
    assert ends([["a", "b"]], timings) == {"a": (0, 3), "b": (0, 3)}


@pytest.mark.parametrize(("before", "end"), [(0.0, 4.0), (1.0, 4.0), (2.5, 4.5), (9.0, 11.0)])
def test_a_pass_that_needs_the_link_waits_for_what_is_on_it(before: float, end: float) -> None:
    """The pass takes 4, for 2 of which it also needs the link."""
    timings = {"SUM": Timing(Cost(before, "link")), "F": Timing(Cost(4.0, beside=2.0, link="link"))}
    assert ends([["SUM", "F"]], timings)["F"] == (0, end)


def test_ranks_wait_for_messages_and_those_that_wait_for_ever_are_missing() -> None:
    sent: dict[int, float] = {}
    never: dict[int, float] = {}
    timings = {
        "take": Timing(Cost(1.0), awaited=sent),
        "make": Timing(Cost(2.0)),
        "send": Timing(Cost(0.5, "to 0"), given=sent),
        "hang": Timing(Cost(1.0), awaited=never),
    }
    found = ends([["take"], ["make", "send", "hang"]], timings)
    assert found == {"make": (0, 2), "send": (2, 2.5), "take": (2.5, 3.5)}


# ---- lists of ranks


def starts(
    steps: list[StepList], seconds: dict[tuple[int, Kind], float]
) -> dict[tuple[int, str], float]:
    """When each operation starts, by its rank and text; sums and gathers are on the link."""

    def cost(r: int, op: Op) -> Cost:
        is_beside = op.kind in (Kind.SUM, Kind.GATHER)
        return Cost(seconds.get((r, op.kind), 0.0), "link" if is_beside else None)

    return {(r, str(op)): start for r, op, _, start, _ in carried_out(steps, cost)}


def test_messages_come_at_once_to_a_rank_without_the_others() -> None:
    steps = lists(SCHEDULES["1f1b"], 2, 1)
    assert starts(steps, {(0, Kind.F): 2.0, (0, Kind.SEND_F): 0.5})[1, "F0.0"] == 2.5
    assert starts(steps[1:], {})[0, "F0.0"] == 0


def test_gathers_that_the_step_before_has_started_come_first() -> None:
    (step,) = lists(SCHEDULES["1f1b"], 1, 1)
    waiting = replace(step, begins=(0,), ops=(Op(Kind.WAIT, at=0), *step.ops))
    assert starts([waiting], {(0, Kind.GATHER): 3.0})[0, "F0.0"] == 3


def test_a_rank_waits_for_its_own_sums() -> None:
    """Rank 1 starts a sum with the same number before rank 0 waits for its own."""
    steps = list[StepList]()
    for step in lists(SCHEDULES["1f1b"], 2, 1):
        k = step.ops.index(step.passes[-1])
        ops = *step.ops[:k], Op(Kind.SUM, at=0), *step.ops[k:-2], Op(Kind.FINISH, at=0)
        steps.append(replace(step, ops=(*ops, *step.ends)))
    found = starts(steps, {(0, Kind.SUM): 3.0, (1, Kind.SUM): 7.0})
    assert (found[0, "APPLY"], found[1, "APPLY"]) == (3, 7)
