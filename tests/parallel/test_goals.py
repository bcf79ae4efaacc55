"""A loss, targets and metrics of the user's own, beside what the table of conformance says."""

import pytest
from helpers.training import laws_goals as laws

from nnmpi.comm import thread_ranks as threads


@pytest.mark.one_in(2)
@pytest.mark.parametrize("goal", laws.GOALS)
@pytest.mark.parametrize(
    "options",
    [{"schedule": "pipedream", "pp": 2, "cut": "2"}, {"sync": "asp"}, {"dtype": "float32"}],
    ids=str,
)
def test_what_has_no_equal_on_one_rank_learns_too(options, goal):
    for trained in threads.run(2, lambda comm: laws.train(comm, goal, **options, epochs=8)):
        assert 0 < trained.event["loss"] < laws.one_rank(goal, (("epochs", 1),)).event["loss"]
