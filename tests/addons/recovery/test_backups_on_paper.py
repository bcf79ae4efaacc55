"""Where backups go, how often they are made, and what they cost: on paper."""

from itertools import product

import pytest

from nnmpi import Config
from nnmpi.addons.recovery.parallel.backups_on_paper import (
    backed_up,
    backup,
    needs_backups,
    neighbours,
    steps_between,
)
from nnmpi.addons.recovery.run.layouts import even_division
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.state_on_paper import unreplicated_bytes
from nnmpi.run.setup.cutting import on_cluster, uncut_of

MODEL = "mlp:64-8-10"
PARAMETERS = 64 * 8 + 8 + 8 * 10 + 10  # numbers


def arranged(ranks: int, nodes: int, order: str) -> Arrangement:
    options = {"model": MODEL, "pp": 2, "allreduce": "ring", "order": order, "backup": 1}
    return on_cluster(uncut_of(Config(**options))[1], Cluster.on_paper(ranks, nodes), even_division)


@pytest.mark.parametrize(
    ("nodes", "keepers"),
    [
        ((0,), (0,)),
        ((0, 0, 0), (1, 2, 0)),
        ((0, 1), (1, 0)),
        ((0, 0, 1, 1, 2, 2), (2, 3, 4, 5, 0, 1)),
        ((0, 1, 2, 0, 1, 2), (1, 2, 0, 4, 5, 3)),
        ((0, 0, 0, 1), (3, 3, 3, 0)),
        ((0, 0, 0, 1, 1, 2), (3, 4, 5, 5, 0, 0)),
    ],
)
def test_a_backup_is_on_another_node(nodes: tuple[int, ...], keepers: tuple[int, ...]) -> None:
    assert neighbours(nodes) == keepers


def test_nodes_of_one_size_keep_as_much_as_each_other() -> None:
    for nodes, each in product(range(2, 6), range(1, 5)):
        places = [r // each for r in range(nodes * each)]
        keepers = neighbours(places)
        assert sorted(keepers) == [*range(len(places))]
        assert all(places[r] != places[keeper] for r, keeper in enumerate(keepers))


def test_what_a_node_alone_has_goes_to_another_one() -> None:
    """Copies that a node has do not outlive it."""
    inside, across = "tp,dp,pp", "pp,dp,tp"
    for order, is_needed in ((inside, True), (across, False)):
        a = arranged(4, 2, order)
        assert not any(unreplicated_bytes(a, r) for r in range(4))
        assert needs_backups(a) == is_needed
    on_nodes, on_node = (arranged(4, nodes, inside) for nodes in (2, 1))
    assert all(backed_up(on_nodes, r) for r in range(4))
    assert not needs_backups(on_node)
    assert sum(backup(on_nodes, r)[1] for r in range(4)) > 2 * 2 * 2 * 12 * PARAMETERS


@pytest.mark.parametrize(
    ("cost", "step", "mtbf", "steps"),
    [(0.5, 1.0, 3600.0, 60), (0.5, 0.1, 3600.0, 600), (1e-9, 1.0, 1.0, 1), (0.0, 0.0, 1.0, 1)],
)
def test_young_weighs_the_cost_of_backups_against_the_steps_they_save(
    cost: float, step: float, mtbf: float, steps: int
) -> None:
    assert steps_between(cost, step, mtbf) == steps
