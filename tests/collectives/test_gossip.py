"""Gossip: the proof of the graphs, their spectral gaps, and parameters that are mixed by them."""

from fractions import Fraction
from math import cos, pi
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.averaging import options as averaging
from nnmpi.collectives.gossip import GRAPHS, Gossip, on_grid, prove
from nnmpi.collectives.step import PlanError
from nnmpi.comm import thread_ranks

SIZES = [*range(1, 18), 24, 32, 36, 61]


def test_the_names_of_the_command_are_those_of_the_table() -> None:
    assert tuple(GRAPHS) == averaging.GRAPHS


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_proved_for_any_number_of_replicas(name: str) -> None:
    for n in SIZES:
        graph = GRAPHS[name](n)
        assert graph.replicas == n
        prove(graph)
        matrix = graph.mixing()
        assert name == "exponential" or matrix == [list(row) for row in zip(*matrix, strict=True)]
        moduli = sorted(abs(np.linalg.eigvals(np.array(matrix, float))))
        assert graph.gap() == pytest.approx(1 - max(moduli[:-1], default=0), abs=1e-7)
        assert n == 1 or graph.gap() > 1e-4  # connected, and never merely exchanges two halves


def test_gaps_are_those_of_the_literature() -> None:
    for n in (3, 4, 5, 8, 17, 64, 1000):
        assert GRAPHS["ring"](n).gap() == pytest.approx(1 - (1 + 2 * cos(2 * pi / n)) / 3)
    for n in (2, 4, 6, 8, 12, 16, 64, 1000, 1024):
        rounds = (n - 1).bit_length()
        assert GRAPHS["exponential"](n).gap() == pytest.approx(2 / (1 + rounds))
    for n in (2, 5, 64):
        assert GRAPHS["complete"](n).gap() == pytest.approx(1)
        assert GRAPHS["complete"](n).mixing() == [[Fraction(1, n)] * n] * n


def test_neighbours_that_are_the_same_replica_count_once() -> None:
    degrees = {name: [len(GRAPHS[name](n).offsets) for n in (2, 4, 6)] for name in GRAPHS}
    ring, torus, complete = [1, 2, 2], [1, 2, 3], [1, 3, 5]
    assert degrees == {"ring": ring, "torus": torus, "exponential": torus, "complete": complete}


class Heavy(Gossip):
    """Weights that sum to more than 1."""

    @property
    def weight(self) -> Fraction:
        return Fraction(1, 2)


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (on_grid(1, 4, [(0, 2)]), "nothing that replica 0 sends reaches replica 1"),
        (Gossip(1, 3, ((0, 3),)), "exchange 0: replica 0 sends to 0, which receives from 0"),
        (Heavy(*GRAPHS["ring"](4)), "that replica 0 receives sum to 3/2, not 1"),
    ],
)
def test_graphs_that_do_not_mix_are_refused(graph: Gossip, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        prove(graph)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("n", [4, 9, 12])
def test_on_a_quadratic_the_distance_to_the_mean_shrinks_by_the_gap(name: str, n: int) -> None:
    """Steps x <- W (x - rate x): the slowest shape shrinks by exactly (1 - rate) (1 - gap) in each,
    any other at least so much, and the mean moves as that of one replica."""
    graph, rate = GRAPHS[name](n), 0.1
    w = np.array(graph.mixing(), float)
    values, vectors = np.linalg.eig(w)
    slowest = vectors[:, np.argsort(np.abs(values))[-2]]
    start = np.random.default_rng(n).standard_normal(n)
    for x, exact in ((slowest, True), (start, False)):
        mixed = w @ (x - rate * x)
        assert mixed.mean() == pytest.approx((1 - rate) * x.mean(), abs=1e-12)
        shrinks = np.linalg.norm(mixed - mixed.mean()) / np.linalg.norm(x - x.mean())
        most = (1 - rate) * (1 - graph.gap())
        assert shrinks <= most + 1e-7
        assert not exact or shrinks == pytest.approx(most, abs=1e-7)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("n", [2, 5, 6])
def test_ranks_that_carry_out_the_exchanges_mix_and_send_what_is_stated(name: str, n: int) -> None:
    graph, start = GRAPHS[name](n), np.random.default_rng(n).standard_normal((n, 3))

    def mix(comm: Any) -> tuple[Any, int, int]:
        x = start[comm.rank].copy()
        comm.ledger.reset()
        mixed = x.copy()
        for to, source in graph.exchanges(comm.rank):
            received = np.empty_like(x)
            works = comm.irecv(received, source), comm.isend(x, to)
            for work in works:
                work.wait()
            mixed += received
        ledger = comm.ledger
        return mixed * float(graph.weight), sum(ledger.sent_bytes), sum(ledger.sent_messages)

    mixed, sent, messages = zip(*thread_ranks.run(n, mix), strict=True)
    np.testing.assert_allclose(mixed, np.array(graph.mixing(), float) @ start, rtol=1e-12)
    degree = len(graph.offsets)
    assert set(zip(sent, messages, strict=True)) == {(degree * 3 * 8, degree)}
