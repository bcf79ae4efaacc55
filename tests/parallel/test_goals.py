"""A loss, targets and metrics of the user's own: every layout trains as one rank."""

from typing import Any

import pytest
from helpers.training import laws_goals as laws

from nnmpi.comm import thread_ranks as threads

THREE = {"micro_batches": 3}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "dp 2": (2, {}, {}),
    "dp 3, micro-batches": (3, {}, THREE),
    "zero 2": (2, {"zero": 2}, {}),
    "zero 3": (3, {"zero": 3}, THREE),
    "pp 2": (2, {"pp": 2, "schedule": "1f1b", "cut": "2"}, THREE),
    "dp 2, pp 2": (4, {"pp": 2, "schedule": "zb-h1", "cut": "2"}, THREE),
    "tp 2": (2, {"tp": 2}, {}),
    "dp 2, tp 2": (4, {"tp": 2}, THREE),
    "pp 2, tp 2": (4, {"tp": 2, "pp": 2, "cut": "3", "recompute": True}, THREE),
    "server": (3, {"sync": "bsp", "servers": 1}, {}),
    "verify": (2, {"verify": True}, {}),
}


@pytest.mark.parametrize("goal", laws.GOALS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_rank(layout, goal):
    ranks, options, same = LAYOUTS[layout]
    if "tp" in options and not laws.GOALS[goal].shards:
        pytest.skip("tp does not know its layers")
    threads.run(ranks, laws.trains_as_one_rank, goal, options, same)


@pytest.mark.parametrize("goal", laws.GOALS)
def test_bits_do_not_depend_on_the_number_of_ranks(goal):
    for ranks in (2, 3):
        threads.run(ranks, laws.gives_the_same_bits, goal)


def test_a_step_is_that_of_a_loop_by_hand():
    threads.run(2, laws.equals_a_loop)


@pytest.mark.parametrize("goal", laws.GOALS)
@pytest.mark.parametrize(
    "options",
    [{"schedule": "pipedream", "pp": 2, "cut": "2"}, {"sync": "asp"}, {"dtype": "float32"}],
    ids=str,
)
def test_what_has_no_equal_on_one_rank_learns_too(options, goal):
    for trained in threads.run(2, lambda comm: laws.train(comm, goal, **options, epochs=8)):
        assert 0 < trained.event["loss"] < laws.one_rank(goal, (("epochs", 1),)).event["loss"]
