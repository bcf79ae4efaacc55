"""Seconds of exchanges: those of `collectives/price`, whose algorithms are carried out, but shared
links; and curves that were measured."""

import numpy as np
import pytest

from nnmpi.addons.planning.exchange_time import IN_PLACE, ExchangeTimes, curve_name
from nnmpi.addons.planning.machine import TYPICAL, Curve
from nnmpi.addons.simulator.collective import simulate
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.price import Link, Network, price
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.op import Kind

MACHINE = TYPICAL._replace(near=Link(1e-6, 1e-10), far=Link(3e-5, 7e-10), adding=2e-10)
NUMBERS = 120_120
OF_NODES = "hierarchical"  # of which each node adds up through its memory, not by messages


def exchange(
    operation: Collective, algorithm: str, *group: int, numbers: int = NUMBERS
) -> Exchange:
    return Exchange(
        "gradients", operation, algorithm, group, numbers, np.dtype("float32"), Kind.SUM
    )


@pytest.mark.parametrize("nodes", [1, 2, 4, 12])
@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [(c, name) for c in Collective for name in c.algorithms if name != OF_NODES],
)
def test_a_collective_takes_what_its_plan_is_priced_at(
    operation: Collective, algorithm: str, nodes: int
) -> None:
    cluster = Cluster.on_paper(12, nodes)
    per_node = 12 // nodes
    network = Network(MACHINE.far, MACHINE.adding, MACHINE.near, per_node)
    one = exchange(operation, algorithm, *range(12))
    found = ExchangeTimes(MACHINE, cluster).seconds(one)
    expected = price(operation.algorithms[algorithm], 12, one.nbytes, network).seconds
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_ring_is_as_slow_as_its_slowest_link() -> None:
    cluster = Cluster.on_paper(5, 2)  # nodes of 3 and 2 ranks
    one = exchange(Collective.ALL_REDUCE, "ring", *range(5))
    chunk = one.nbytes / 5
    link = MACHINE.far.alpha + chunk * MACHINE.far.beta
    expected = 8 * link + 4 * chunk * MACHINE.adding
    assert ExchangeTimes(MACHINE, cluster).seconds(one) == pytest.approx(expected, rel=1e-12)


def test_partial_sums_of_16_bits_take_longer_where_they_travel_as_32() -> None:
    """Through the memory of a node nothing travels."""
    ranks, times = range(12), ExchangeTimes(MACHINE, Cluster.on_paper(12, 12))
    half, sums = np.dtype("float16"), np.dtype("float32")
    for operation, of_float32 in (
        (Collective.ALL_REDUCE, 3 / 4),
        (Collective.REDUCE_SCATTER, 1),
        (Collective.ALL_GATHER, 1 / 2),
    ):
        wide = exchange(operation, "ring", *ranks)
        one = wide._replace(dtype=half, sums=None if operation is Collective.ALL_GATHER else sums)
        alike = wide._replace(elements=round(NUMBERS * of_float32))
        assert times.seconds(one) == pytest.approx(times.seconds(alike), rel=1e-12)
        narrow, alike = one._replace(sums=None), wide._replace(elements=NUMBERS // 2)
        assert times.seconds(narrow) == pytest.approx(times.seconds(alike), rel=1e-12)
    near = ExchangeTimes(MACHINE, Cluster.on_paper(12))
    shared = exchange(Collective.ALL_REDUCE, "shared", *ranks)._replace(dtype=half)
    assert near.seconds(shared) == near.seconds(shared._replace(sums=sums)) > 0


def test_groups_share_the_link_of_a_node() -> None:
    times = ExchangeTimes(MACHINE, Cluster.on_paper(8, 2))
    alone = ExchangeTimes(MACHINE, Cluster.on_paper(2, 2))
    of_four = times.seconds(exchange(Collective.ALL_REDUCE, "ring", 0, 4))
    one = exchange(Collective.ALL_REDUCE, "ring", 0, 1)
    waiting = 2 * 3 * one.nbytes / 2 * MACHINE.far.beta
    assert of_four == pytest.approx(alone.seconds(one) + waiting, rel=1e-12)


def test_a_node_adds_up_before_it_sends() -> None:
    times = ExchangeTimes(MACHINE, Cluster.on_paper(8, 2))
    one = exchange(Collective.ALL_REDUCE, "hierarchical", *range(8))
    near, far, n = MACHINE.near, MACHINE.far, one.nbytes
    inside = 2 * near.alpha + 2 * n * near.beta + 3 * n * MACHINE.adding
    between = 2 * (far.alpha + n / 2 * far.beta) + n / 2 * MACHINE.adding
    assert times.seconds(one) == pytest.approx(inside + between, rel=1e-12)
    on = Network(far, MACHINE.adding, near, 4)
    simulated = simulate("all-reduce", "hierarchical", 8, n, on)
    assert times.seconds(one) == pytest.approx(simulated["seconds"], rel=1e-12)


def test_what_was_measured_on_a_node_counts_there() -> None:
    """Gradients are summed where they lie, and activations are copied."""
    in_place, copied = (curve_name(Collective.ALL_REDUCE, name, 4) for name in (IN_PLACE, "shared"))
    curves = {in_place: Curve(((400.0, 1.0), (800.0, 2.0))), copied: Curve(((1.0, 3.0),))}
    machine = MACHINE._replace(sums=curves)
    one = exchange(Collective.ALL_REDUCE, "shared", 0, 1, 2, 3, numbers=150)
    times = ExchangeTimes(machine, Cluster.on_paper(4))
    assert times.seconds(one) == 1.5
    assert times.seconds(one._replace(during=Kind.F)) == 3.0
    assert ExchangeTimes(machine, Cluster.on_paper(4, 2)).seconds(one) < 1e-3


def test_messages_are_sent_one_after_the_other() -> None:
    times = ExchangeTimes(MACHINE, Cluster.on_paper(3, 3))
    message = times.seconds(exchange(Collective.MESSAGE, "", 0, 1))
    assert message == pytest.approx(MACHINE.far.alpha + 4 * NUMBERS * MACHINE.far.beta)
    both = times.seconds(exchange(Collective.MESSAGE, "", 0, 1, 2))
    assert both == pytest.approx(message + MACHINE.far.alpha)
    twice = exchange(Collective.MESSAGE, "", 0, 1)._replace(times=2)
    assert times.seconds(twice) == 2 * message
    assert times.seconds(exchange(Collective.MESSAGE, "", 0)) == 0
