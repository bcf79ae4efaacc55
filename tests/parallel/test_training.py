"""The laws of training on ranks that are threads; how ranks of several nodes train."""

import pytest
from helpers.training import laws_training
from helpers.training.conformance import rows
from helpers.training.pipelined import run
from helpers.training.unusual_models import Unused, frozen, spoilt

from nnmpi.comm import comm_self
from nnmpi.comm import thread_ranks as threads


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("p", "per_node"), [(2, 1), (3, 2), (4, 2), (8, 3)])
def test_nodes_train_as_one_rank(p: int, per_node: int, is_sample: bool) -> None:
    """Ranks of a node share its copy of the parameters; nodes send. Every sixth row is tried."""
    sums = [f"allreduce={name} " for name in ("auto", "shared", "ring", "hierarchical")]
    found = [row for row in rows("data parallel") if row.ranks == p]
    tried = [row for row in found if any(name in row.name for name in sums)]
    for row in tried[1 :: 6 if is_sample else 3]:
        threads.run(p, row.trains_as_one_rank, per_node=per_node)
    if p == 3 and not is_sample:
        threads.run(p, laws_training.verify_finds_no_difference, per_node=per_node)


def test_unused_and_frozen_parameters_stay() -> None:
    for build, names in (
        (Unused, ("idle.weight", "spare.bias", "fixed.weight")),
        (frozen, ("1.weight", "3.bias", "7.weight")),
    ):
        trained = run(comm_self(), build, weight_decay=0.1).state
        fresh = build().to("float64").state_dict()
        for name in names:
            assert (trained[name] == fresh[name]).all()


def test_a_step_that_is_not_finite_is_left_out() -> None:
    """One sample spoils one step of each epoch."""
    assert run(comm_self(), spoilt).done["skipped_steps"] == 2
