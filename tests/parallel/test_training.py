"""The laws of training on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_training

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("law", laws_training.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)


@pytest.mark.parametrize(("p", "per_node"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_laws_across_nodes(p: int, per_node: int) -> None:
    """Ranks of a node share its copy of the parameters; nodes send."""
    for law in (
        laws_training.every_sum_trains_as_one_rank,
        laws_training.every_optimizer_trains_as_one_rank,
        laws_training.verify_finds_no_difference,
    ):
        threads.run(p, law, per_node=per_node)
