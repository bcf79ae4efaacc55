"""Topologies: the links of messages, the price of a round, and algorithms that fit a torus."""

import re
from math import isclose, prod
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.simulator.collective import simulate
from nnmpi.addons.simulator.network import TOPOLOGIES, named_topology
from nnmpi.addons.simulator.topologies import dragonfly, fat_tree, rails, torus
from nnmpi.collectives.algorithms import ALGORITHMS, bucket, swinging
from nnmpi.collectives.combine import factors, swing_partners
from nnmpi.collectives.double_tree import CHUNKS, double_tree
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import Algorithm, PlanError, Step, only, per_rank, then
from nnmpi.collectives.topology import Topology, crowd
from nnmpi.collectives.verify import verify

# ---- one level and two: 1,234,567 bytes on 13 ranks, as priced before there were topologies

LEVELS = {
    "one": Network(Link(5e-6, 1e-10), 3e-11),
    "two": Network(Link(5e-6, 1e-10), 2e-11, Link(1e-6, 1.7e-11), 4),
    "uneven": Network(
        Link(5e-6, 1e-10),
        inner=Link(1e-6, 1.7e-11),
        nodes=np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
        sharing=3,
    ),
}
STORED = {
    "one": {
        "ring": "0x1.90ab5aae0b913p-12",
        "tree": "0x1.343ab65c8d67ap-10",
        "ps": "0x1.ce58118ad41b7p-9",
        "p2p": "0x1.90ab5aae0b913p-12",
        "doubling": "0x1.9e69ece986f1ap-11",
        "halving": "0x1.4a2ab230b167dp-11",
        "hierarchical": "0x1.392d2505f0d4cp-11",
    },
    "two": {
        "ring": "0x1.84b8434fc0d2dp-12",
        "tree": "0x1.6f49406ff75bap-11",
        "ps": "0x1.6731fdf2ca156p-9",
        "p2p": "0x1.b159f505b7497p-11",
        "doubling": "0x1.9f3e05712d1f6p-11",
        "halving": "0x1.7f8484722df38p-11",
        "hierarchical": "0x1.7b078c0b3d968p-12",
    },
    "uneven": {
        "ring": "0x1.a566dda76c8b1p-11",
        "tree": "0x1.899aa4dab6069p-9",
        "ps": "0x1.f1c4ded461528p-8",
        "p2p": "0x1.1c9815f03c4b0p-9",
        "doubling": "0x1.b82ee2c4f05a5p-9",
        "halving": "0x1.7332d909e9e19p-9",
        "hierarchical": "0x1.7af8a010cd808p-10",
    },
}


@pytest.mark.parametrize("levels", STORED)
def test_one_level_and_two_have_the_bits_of_the_first_version(levels: str) -> None:
    for name, seconds in STORED[levels].items():
        paid = price(ALGORITHMS[name], 13, 1234567.0, LEVELS[levels])
        assert paid.seconds.hex() == seconds, name


# ---- links


def crossed(topology: Topology, source: int, to: int) -> list[int]:
    links = topology.links(np.array([source]), np.array([to]))[:, 0]
    return [int(link) for link in links if link >= 0]


HOPS = {  # topology, source, to -> links
    "one switch": (fat_tree(4), 0, 1, 2),
    "one pod": (fat_tree(4), 0, 2, 4),
    "two pods": (fat_tree(4), 0, 15, 6),
    "neighbours": (torus((4, 4)), 5, 6, 1),
    "round the end": (torus((4, 4)), 4, 7, 1),
    "both sides": (torus((4, 4)), 0, 10, 4),
    "three sides": (torus((4, 4, 4)), 0, 21, 3),
    "one router": (dragonfly(4, 9, 2), 0, 1, 2),
    "one group": (dragonfly(4, 9, 2), 0, 7, 3),
    "two groups": (dragonfly(4, 9, 2), 3, 70, 5),
    "one node": (rails(8, 64), 0, 7, 2),
    "one rail": (rails(8, 64), 0, 8, 2),
}


@pytest.mark.parametrize("case", HOPS.values(), ids=HOPS)
def test_a_message_crosses_the_links_of_its_way(case: tuple[Topology, int, int, int]) -> None:
    topology, source, to, hops = case
    links = crossed(topology, source, to)
    assert len(set(links)) == len(links) == hops
    assert not set(links) & set(crossed(topology, to, source))  # a link has two directions


def test_a_message_leaves_a_node_on_the_rail_of_its_receiver() -> None:
    outlets = {(s, t): crossed(rails(4, 16), s, t)[0] for s in (0, 1) for t in (4, 5)}
    assert outlets[0, 5] == outlets[1, 5] != outlets[0, 4] == outlets[1, 4]


def test_the_way_on_a_torus_by_hand() -> None:
    """Rank 0 to rank 10 of 4 x 4: right, right, down, down; a link is (rank, side, direction)."""
    right, down = 1, 0
    ways = [(0, right), (1, right), (2, down), (6, down)]
    assert crossed(torus((4, 4)), 0, 10) == [(rank * 2 + side) * 2 for rank, side in ways]
    assert crossed(torus((4, 4)), 0, 3) == [(0 * 2 + right) * 2 + 1]


@pytest.mark.parametrize("sizes", [(4, 9, 2), (4, 3, 4), (3, 4, 1), (2, 2, 3), (1, 1, 1)])
def test_groups_of_a_dragonfly_share_a_global_link_both_ways(sizes: tuple[int, ...]) -> None:
    """The link by which a group sends to another ends at the router from which the way goes on."""
    a, g, h = sizes
    n = a * g * h
    topology, ranks = dragonfly(a, g, h), np.arange(n)
    for to in range(n):
        across = topology.links(ranks, np.full(n, to))[3]
        groups = ranks // (a * h)
        assert ((across >= 0) == (groups != to // (a * h))).all()
        outlets = across[across >= 0] - 2 * n - g * a * a
        assert (outlets // (a * h) == groups[across >= 0]).all()
        assert len(set(outlets.tolist())) <= (g - 1) * (a * h // max(g - 1, 1))


SHARED = {  # topology, a shift of all ranks -> messages on the most loaded link
    "a fat tree carries every shift": (fat_tree(4), 5, 1.0),
    "oversubscribed twofold": (fat_tree(4, 2), 5, 2.0),
    "a ring of four": (torus((4,)), 2, 2.0),
    "neighbours of a torus": (torus((4, 4)), 4, 1.0),
    "rails": (rails(4, 16), 4, 1.0),
    "a dragonfly with one link between groups": (dragonfly(4, 9, 2), 8, 8.0),
    "and with two": (dragonfly(4, 3, 1), 4, 2.0),
}


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_messages_share_the_most_loaded_link(case: tuple[Topology, int, float]) -> None:
    topology, shift, wanted = case
    ranks = np.arange(min(topology.ranks, 72))
    links = topology.links(ranks, (ranks + shift) % len(ranks))
    assert crowd(links, topology.width).max() == wanted
    step = Step((ranks + shift) % len(ranks), (0, 1), (ranks - shift) % len(ranks), (0, 1), True)
    once = Algorithm(lambda p: 1, lambda p: 1, lambda t, r, p: step)
    on = Network(Link(1.0, 1.0), topology=topology)
    if topology.node:
        on = on._replace(inner=Link(0.0, 0.0), per_node=topology.node)
    assert price(once, len(ranks), 10.0, on).seconds == 1 + wanted * 10


def test_rails_pass_nodes_and_one_link_for_each_rank() -> None:
    """Shifts by whole nodes go at full speed on rails, and share a link on two levels."""
    far, near = Link(1.0, 1.0), Link(0.0, 0.25)
    p2p = ALGORITHMS["p2p"]
    two = price(p2p, 16, 160.0, Network(far, 0.0, near, 4)).seconds
    by_rail = price(p2p, 16, 160.0, Network(far, 0.0, near, 4, topology=rails(4, 16))).seconds
    assert two == 30 + 2 * (1 + 2 + 3 + 9 * 4 + 3 + 2 + 1) * 10  # as many leave a node at once
    assert by_rail == 30 * (1 + 10)


# ---- algorithms on a torus

DEFICIENCIES = {(8, 8): 1.095, (16, 16): 1.141, (32, 32): 1.170}
"""Of Swing, as in De Sensi et al., NSDI 2024: its time over that of all links used all the time."""


def deficiency(algorithm: Algorithm, shape: tuple[int, ...]) -> float:
    p = prod(shape)
    on = Network(Link(0.0, 1.0), topology=torus(shape))
    return price(algorithm, p, 1.0, on).seconds / (2 * (p - 1) / p / (2 * len(shape)))


@pytest.mark.parametrize("shape", DEFICIENCIES)
def test_swing_uses_a_torus_as_published_and_bucket_fully(shape: tuple[int, ...]) -> None:
    assert round(deficiency(swinging(shape), shape), 3) == DEFICIENCIES[shape]
    assert isclose(deficiency(bucket(shape), shape), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (8, 4), (4, 4), (2, 4, 8), (4, 4, 4), (1, 8)])
def test_both_are_proved_on_tori(shape: tuple[int, ...]) -> None:
    for algorithm in (swinging(shape), bucket(shape)):
        verify(algorithm, prod(shape))


@pytest.mark.parametrize("shape", [(3, 5), (6, 2)])
def test_bucket_takes_any_sides_and_swing_folds_to_a_ring(shape: tuple[int, ...]) -> None:
    verify(bucket(shape), prod(shape))
    verify(swinging(shape), prod(shape))
    assert swinging(shape).chunks(prod(shape)) == swinging().chunks(prod(shape))


def test_partners_of_swing_as_published() -> None:
    """Even ranks go 1, -1, 3 on, odd ones back, and the mirror image the other way."""
    assert swing_partners((8,), 0, 1).of.tolist() == [
        [1, 0, 3, 2, 5, 4, 7, 6],
        [7, 2, 1, 4, 3, 6, 5, 0],
        [3, 6, 5, 0, 7, 2, 1, 4],
    ]
    assert swing_partners((8,), 0, -1).of[0].tolist() == [7, 2, 1, 4, 3, 6, 5, 0]


def test_factors_are_fours_and_primes() -> None:
    for p in (*range(1, 200), 4096):
        assert prod(factors(p)) == p
        assert all(f == 4 or f == 2 or f % 2 for f in factors(p))
    assert (factors(1), factors(8), factors(60), factors(17)) == ((), (4, 2), (4, 3, 5), (17,))


@pytest.mark.parametrize("p", [2, 3, 6, 7, 13, 32, 100])
def test_in_a_double_tree_a_rank_has_children_in_one_tree_at_most(p: int) -> None:
    """Ranks receive chunks of one half only, and each half reaches its root from all others."""
    received, senders = [set[int]() for _ in range(p)], [set[int](), set[int]()]
    for step in double_tree.steps(np.arange(p), p):
        for r, s in enumerate(per_rank(step, p)):
            if s.source >= 0:
                received[r].add(s.recv[0] // CHUNKS)
                senders[s.recv[0] // CHUNKS].add(s.source)
    assert max(map(len, received)) == 1
    assert [len(half) for half in senders] == [p - 1, p - 1]


# ---- several ports


def at_once(*steps: Step) -> Algorithm:
    return Algorithm(lambda p: len(steps), lambda p: 2, lambda t, r, p: steps[t])


def both_ways(chunk: int, port: int, ports: int = 2) -> Step:
    """Both of two ranks exchange a chunk and add it."""
    return Step([1, 0], (chunk, chunk + 1), [1, 0], (chunk, chunk + 1), True, port, ports)


def test_messages_of_a_round_share_the_link_of_a_rank() -> None:
    on = Network(Link(1.0, 1.0), 0.5)
    together = price(at_once(both_ways(0, 0), both_ways(1, 1)), 2, 20.0, on)
    assert (together.seconds, together.rounds) == (1 + 20 + 0.5 * 20, 1)
    one_by_one = price(at_once(both_ways(0, 0, 1), both_ways(1, 0, 1)), 2, 20.0, on)
    assert (one_by_one.seconds, one_by_one.rounds) == (2 * (1 + 10 + 0.5 * 10), 2)
    assert together.messages.tolist() == one_by_one.messages.tolist() == [2, 2]


def test_groups_share_the_link_of_a_node_and_no_other() -> None:
    """On one level there is none, whatever the number of ports."""
    together = at_once(both_ways(0, 0), both_ways(1, 1))
    alone = Network(Link(1.0, 1.0))
    for algorithm in (together, at_once(both_ways(0, 0, 1), both_ways(1, 0, 1))):
        seconds = price(algorithm, 2, 20.0, alone).seconds
        assert price(algorithm, 2, 20.0, alone._replace(sharing=3)).seconds == seconds
    far = Network(Link(1.0, 1.0), inner=Link(0.0, 0.0), per_node=1, sharing=3)
    assert price(together, 2, 20.0, far).seconds == 1 + 3 * 20


BROKEN = {
    "a chunk that just arrived": (
        (both_ways(0, 0), both_ways(0, 1)),
        "round 1: rank 0 sends chunks 0, which arrive on another port at the same time",
    ),
    "a round without its end": ((both_ways(0, 0), both_ways(1, 1, 3)), "port 1 of 3 comes when 1"),
    "a round cut short": ((both_ways(0, 0),), "at the end: the last round lacks 1 of its steps"),
    "no first port": ((both_ways(0, 1),), "port 1 of 2 comes when 0 steps are left"),
    "a port for each rank": ((both_ways(0, [0, 0]),), "port"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_the_proof_refuses_rounds_that_cannot_happen_at_once(case: Any) -> None:
    steps, says = case
    verify(at_once(both_ways(0, 0), both_ways(1, 1)), 2)
    with pytest.raises(PlanError, match=says):
        verify(at_once(*steps), 2)


# ---- by name


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("fat-tree:4", 16), ("fat-tree:8:2.5", 128), ("torus:8x8", 64), ("torus:2x3x4", 24),
     ("dragonfly:4,9,2", 72), ("rails:8", 10_000_000)],
)  # fmt: skip
def test_a_topology_has_its_text_and_ranks(text: str, ranks: int) -> None:
    assert (named_topology(text).text, named_topology(text).ranks) == (text, ranks)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mesh:4x4", "network 'mesh:4x4' is none of fat-tree:K[:OVERSUBSCRIPTION], torus:8x8[x8]"),
        ("torus:", "is none of"),
        ("fat-tree:3", "of 3 ports, oversubscribed 1-fold"),
        ("fat-tree:4:0.5", "oversubscribed 0.5-fold"),
        ("fat-tree:4:8", "a factor from 1 to 2"),
        ("torus:4x0", "no side of 0 ranks"),
        ("dragonfly:1,5,2", "a group needs a link to each of the 4 others"),
        ("dragonfly:0,1,1", "1 groups of 0 routers"),
        ("rails:0", "no 0 rails"),
        ("torus:9999999x99", "989999901 must be from 1 to 10000000"),
    ],
)
def test_a_wrong_topology_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^.*{re.escape(says)}.*$"):
        named_topology(text)


def test_more_ranks_than_a_topology_has_are_refused() -> None:
    on = Network(Link(1e-6, 1e-10), topology=torus((4, 4)))
    with pytest.raises(ValueError, match="torus:4x4 has 16 ranks, not 17: take fewer ranks or"):
        simulate("all-reduce", "ring", 17, 1e6, on)


def test_swing_and_bucket_follow_the_torus_of_the_network() -> None:
    on = Network(Link(0.0, 1e-10), topology=torus((8, 8)))
    rounds = {
        name: simulate("all-reduce", name, 64, 1e6, on)["rounds"] for name in ("swing", "bucket")
    }
    assert rounds == {"swing": 12, "bucket": 28}
    fewer = simulate("all-reduce", "bucket", 60, 1e6, on)
    assert fewer["rounds"] == 2 * 59
    assert (fewer["network"], fewer["plan"]) == ("torus:8x8", None)


@pytest.mark.parametrize("text", ["torus:2x2", "rails:2"])
def test_a_round_in_which_nobody_sends_takes_no_time(text: str) -> None:
    def nothing(t: int, r: Any, p: int) -> Step:
        return Step(only(r < 0, 0), (0, 0), only(r < 0, 0), (0, 0), False)

    ring, on = ALGORITHMS["ring"], Network(Link(1e-6, 1e-10), topology=named_topology(text))
    idle = then(ring, Algorithm(lambda p: 1, lambda p: p, nothing))
    assert price(idle, 4, 1e6, on).seconds == price(ring, 4, 1e6, on).seconds


def test_sides_of_one_rank_change_nothing() -> None:
    def seconds(text: str) -> float:
        shape = named_topology(text)
        return price(
            bucket(shape.shape), 64, 1e8, Network(Link(1e-6, 1e-10), topology=shape)
        ).seconds

    assert seconds("torus:8x8x1") == seconds("torus:8x8")


def test_forms_are_those_of_the_help() -> None:
    assert list(TOPOLOGIES) == [
        "fat-tree:K[:OVERSUBSCRIPTION]",
        "torus:8x8[x8]",
        "dragonfly:A,G,H",
        "rails:8",
    ]
