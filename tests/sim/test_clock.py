"""The clock of lists: lanes, what operations wait for, and links that several need."""

from typing import NamedTuple

import pytest

from nnmpi.sim.clock import FREE, Timing, timed


class Op(NamedTuple):
    """An operation: its name is the key of its timing."""

    name: str
    micro: int = 0


def ends(lists: list[list[str]], timings: dict[str, Timing]) -> dict[str, tuple[float, float]]:
    ops = [[Op(name) for name in names] for names in lists]
    return {
        op.name: (start, end) for _, op, start, end in timed(ops, lambda r, op: timings[op.name])
    }


def test_a_lane_goes_on_beside_the_rank_first_in_first_out() -> None:
    given: list[dict[int, float]] = [{}, {}]
    timings = {
        "B1": Timing(2.0),
        "SUM1": Timing(5.0, "link", given=given[0]),
        "B0": Timing(1.0),
        "SUM0": Timing(1.0, "link", given=given[1]),
        "FINISH1": Timing(0.0, awaited=given[0]),
        "FINISH0": Timing(0.0, awaited=given[1]),
    }
    found = ends([[*timings]], timings)
    assert found["B0"] == (2, 3)
    assert found["SUM1"] == (2, 7)
    assert found["SUM0"] == (7, 8)
    assert found["FINISH0"] == (8, 8)


def test_on_a_free_lane_nothing_waits() -> None:
    timings = {name: Timing(3.0, FREE) for name in ("a", "b")}
    assert ends([["a", "b"]], timings) == {"a": (0, 3), "b": (0, 3)}


@pytest.mark.parametrize(("before", "end"), [(0.0, 4.0), (1.0, 4.0), (2.5, 4.5), (9.0, 11.0)])
def test_a_pass_that_needs_the_link_waits_for_what_is_on_it(before: float, end: float) -> None:
    """The pass takes 4, for 2 of which it also needs the link."""
    timings = {"SUM": Timing(before, "link"), "F": Timing(4.0, beside=2.0, link="link")}
    assert ends([["SUM", "F"]], timings)["F"] == (0, end)


def test_ranks_wait_for_messages_and_those_that_wait_for_ever_are_missing() -> None:
    sent: dict[int, float] = {}
    never: dict[int, float] = {}
    timings = {
        "take": Timing(1.0, awaited=sent),
        "make": Timing(2.0),
        "send": Timing(0.5, "to 0", given=sent),
        "hang": Timing(1.0, awaited=never),
    }
    found = ends([["take"], ["make", "send", "hang"]], timings)
    assert found == {"make": (0, 2), "send": (2, 2.5), "take": (2.5, 3.5)}
