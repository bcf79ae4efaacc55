"""The cost of plans: simulated, by our formulas, and by those of textbooks."""

from collections.abc import Callable
from itertools import product
from math import isclose, log2
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.simulator.collective import OPERATIONS, simulate
from nnmpi.addons.simulator.textbook import Formulas, evaluate, letter_values, typeset
from nnmpi.collectives.algorithms import (
    ALGORITHMS,
    BROADCASTS,
    REDUCE_SCATTERS,
    REDUCES,
    Collective,
    hierarchical,
    levels,
)
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import Algorithm, Step

SIZES = (*range(1, 18), 31, 32, 33, 64, 100)
LINK = Link(5e-6, 1e-10)
TRIED = [*product((0.0, 1.0, 12345.0, 1e8), (LINK, Link(0.0, 1e-9), Link(1.0, 0.0)), (0.0, 3e-11))]
"""Bytes, links, and seconds to add a byte."""
COSTS = {
    f"{operation}-{name}": (o.algorithms[name], cost)
    for operation, o in OPERATIONS.items()
    for name, cost in o.costs.items()
}
each_cost = pytest.mark.parametrize("case", COSTS.values(), ids=COSTS)
Case = tuple[Algorithm, Formulas]


def close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=1e-9, abs_tol=1e-18)


# ---- formulas


def test_every_plan_has_formulas() -> None:
    table = {c.text: list(c.algorithms) for c in Collective if c.algorithms}
    table["all-reduce"] += ["p2p-whole"]
    assert {name: list(o.algorithms) for name, o in OPERATIONS.items()} == table
    assert all(list(o.costs) == list(o.algorithms) for o in OPERATIONS.values())


@pytest.mark.one_in(3)
@each_cost
@pytest.mark.parametrize("p", SIZES)
def test_simulated_time_is_our_formula(case: Case, p: int, is_sample: bool) -> None:
    """Of the messages and networks a third, another one for the next p; all with --all."""
    plan, cost = case
    for nbytes, link, gamma in TRIED[p % 3 :: 3] if is_sample else TRIED:
        on = Network(link, gamma)
        simulated = price(plan, p, nbytes, on).seconds
        assert close(simulated, evaluate(cost.plan, letter_values(p, nbytes, on))), (nbytes, on)


@pytest.mark.one_in(3)
@each_cost
@pytest.mark.parametrize("p", SIZES)
def test_the_textbook_and_the_stated_differences_make_our_formula(case: Case, p: int) -> None:
    _, cost = case
    for on in (Network(LINK, 3e-11), Network(Link(1.0, 0.0)), Network(Link(0.0, 1.0), 0.5)):
        x = letter_values(p, 1e6, on)
        if cost.textbook is None:
            assert not cost.differences
            continue
        stated = sum(evaluate(formula, x) for formula in cost.differences)
        assert isclose(evaluate(cost.textbook, x) + stated, evaluate(cost.plan, x), rel_tol=1e-9)


AGREE: dict[tuple[str, str], Callable[[int], bool]] = {  # with gamma 0, for which p
    ("all-reduce", "ring"): lambda p: True,
    ("all-reduce", "tree"): lambda p: p == 1 << levels(p),
    ("all-reduce", "ps"): lambda p: p == 2,
    ("all-reduce", "p2p-whole"): lambda p: True,
    ("all-reduce", "doubling"): lambda p: p == 1 << levels(p),
    ("all-reduce", "halving"): lambda p: p == 1 << levels(p),
    ("reduce-scatter", "ring"): lambda p: True,
    ("reduce-scatter", "p2p"): lambda p: True,
    ("reduce-scatter", "halving"): lambda p: p == 1 << levels(p),
    ("all-gather", "ring"): lambda p: p <= 2,
    ("all-gather", "halving"): lambda p: p == 1 << levels(p),
    ("broadcast", "tree"): lambda p: p == 1 << levels(p),
    ("broadcast", "ps"): lambda p: p == 2,
    ("reduce", "tree"): lambda p: p == 1 << levels(p),
}


@pytest.mark.parametrize(("case", "agrees"), AGREE.items(), ids=map("-".join, AGREE))
def test_the_rank_counts_for_which_the_textbook_formula_is_exact(
    case: tuple[str, str], agrees: Callable[[int], bool]
) -> None:
    for p in SIZES:
        o = simulate(*case, p, 1e6, Network(LINK))
        assert isclose(o["seconds"], o["textbook"]["seconds"], rel_tol=1e-9) == agrees(p), p


def test_textbook_formulas_are_those_of_the_literature() -> None:
    """In the notation of textbooks: N ranks, M bytes (per rank in an all-gather)."""
    a, b, M = 5e-6, 1e-10, 1e6
    for N in (2, 3, 8, 100):
        literature = {
            ("all-reduce", "ps"): 2 * a + 2 * (N - 1) * M * b,
            ("all-reduce", "ring"): 2 * (N - 1) * a + 2 * ((N - 1) / N) * M * b,
            ("all-reduce", "tree"): 2 * a * log2(N) + 2 * log2(N) * M * b,
            ("broadcast", "tree"): a * log2(N) + log2(N) * M * b,
        }
        for (operation, name), seconds in literature.items():
            o = simulate(operation, name, N, M, Network(Link(a, b)))
            assert close(o["textbook"]["seconds"], seconds)
        gather = simulate("all-gather", "ring", N, N * M, Network(Link(a, b)))["textbook"]
        assert close(gather["seconds"], a * log2(N) + (N - 1) * M * b)


def formulas() -> list[str]:
    costs = [cost for _, cost in COSTS.values()]
    texts = [c.plan for c in costs] + [c.textbook for c in costs if c.textbook]
    return list(dict.fromkeys(texts + [formula for c in costs for formula in c.differences]))


@pytest.mark.parametrize("formula", formulas())
def test_formulas_hold_letters_digits_and_arithmetic_only(formula: str) -> None:
    """The letters have values, and nothing is left of the text without them."""
    rest = formula
    for letter in sorted(letter_values(6, 19.0, Network(LINK)), key=len, reverse=True):
        rest = rest.replace(letter, "")
    assert set(rest) <= set("0123456789+-*/() ")
    assert not set("*_") & set(typeset(formula))


@pytest.mark.parametrize(
    ("formula", "paper", "value"),
    [
        ("2*h*a_in", "2ha'", 2 * 1 * 13),
        ("2*a * log_p + 2 * log_p * M*b", "2a log p + 2 log p Mb", 2 * 2 * 3 + 2 * 2 * 20 * 7),
        ("(p-1)/p * M*(2*b+g)", "(p-1)/p M(2b+g)", 3 / 4 * 20 * 25),
        ("(2/p - 1)*(a + M*b)", "(2/p - 1)(a + Mb)", -0.5 * (3 + 140)),
    ],
)
def test_formulas_are_shown_as_on_paper(formula: str, paper: str, value: float) -> None:
    """On paper factors stand side by side, and a fraction ends before the next factor."""
    on = Network(Link(3.0, 7.0), 11.0, Link(13.0, 17.0), 2)
    assert typeset(formula) == paper
    assert evaluate(formula, letter_values(4, 20.0, on)) == value


# ---- bytes and messages

M = 720_720.0  # every p up to 16 divides it
Counts = Callable[[int], tuple[float, float]]  # p -> bytes, messages; of each rank


def of_two(operation: str, name: str, p: int) -> float:
    """In how many rounds a rank sends two pieces that are apart, each as a message, in the mean."""
    algorithm = OPERATIONS[operation].algorithms[name]
    steps = [step for r in range(p) for step in algorithm.steps(r, p)]
    return sum(len(step.sends(algorithm.chunks(p))) == 2 for step in steps) / p


SENT: dict[tuple[str, str], Counts] = {
    ("all-reduce", "ring"): lambda p: (2 * (p - 1) / p * M, 2 * (p - 1)),
    ("all-reduce", "p2p"): lambda p: (2 * (p - 1) / p * M, 2 * (p - 1)),
    ("all-reduce", "p2p-whole"): lambda p: ((p - 1) * M, p - 1),
    ("reduce-scatter", "ring"): lambda p: ((p - 1) / p * M, p - 1),
    ("reduce-scatter", "p2p"): lambda p: ((p - 1) / p * M, p - 1),
    ("all-gather", "ring"): lambda p: ((p - 1) / p * M, p - 1),
    ("all-gather", "p2p"): lambda p: ((p - 1) / p * M, p - 1),
    ("all-gather", "pat"): lambda p: ((p - 1) / p * M, levels(p) + of_two("all-gather", "pat", p)),
    ("reduce-scatter", "pat"): lambda p: (
        (p - 1) / p * M,
        levels(p) + of_two("reduce-scatter", "pat", p),
    ),
    ("all-to-all", "p2p"): lambda p: ((p - 1) / p * M, p - 1),
    ("all-to-all", "bruck"): lambda p: (
        sum(map(int.bit_count, range(p))) / p * M,
        levels(p) + of_two("all-to-all", "bruck", p),
    ),
}
POWERS = (1, 2, 4, 8, 16)
SENT_POWERS: dict[tuple[str, str], Counts] = {  # where p is one of these
    ("all-reduce", "doubling"): lambda p: (levels(p) * M, levels(p)),
    ("all-reduce", "halving"): lambda p: (2 * (p - 1) / p * M, 2 * levels(p)),
    ("reduce-scatter", "halving"): lambda p: ((p - 1) / p * M, levels(p)),
    ("all-gather", "halving"): lambda p: ((p - 1) / p * M, levels(p)),
}


def counts(operation: str, name: str, p: int) -> tuple[Any, Any]:
    paid = price(OPERATIONS[operation].algorithms[name], p, M, Network(LINK))
    return paid.sent, paid.messages


@pytest.mark.parametrize("case", [*SENT, *SENT_POWERS], ids="-".join)
def test_each_rank_sends_what_the_formula_says(case: tuple[str, str]) -> None:
    wanted, sizes = (SENT[case], range(1, 17)) if case in SENT else (SENT_POWERS[case], POWERS)
    for p in sizes:
        for got, figure in zip(counts(*case, p), wanted(p), strict=True):
            np.testing.assert_allclose(got, np.full(p, figure), rtol=1e-12)


@pytest.mark.parametrize("p", range(1, 17))
def test_the_server_sends_to_every_other_rank(p: int) -> None:
    sent, messages = counts("all-reduce", "ps", p)
    assert messages.tolist() == [p - 1] + [1] * (p - 1)
    assert sent.tolist() == [(p - 1) * M] + [M] * (p - 1)


@pytest.mark.parametrize("p", range(1, 17))
def test_a_tree_sends_one_buffer_per_edge_and_direction(p: int) -> None:
    for operation, ways in (("reduce", 1), ("broadcast", 1), ("all-reduce", 2)):
        sent, messages = counts(operation, "tree", p)
        assert messages.sum() == ways * (p - 1)
        assert sent.sum() == ways * (p - 1) * M
    assert messages[0] == messages.max() == levels(p)


@pytest.mark.parametrize("p", [3, 5, 6, 7, 11, 12])
def test_folding_sends_a_buffer_back_and_forth(p: int) -> None:
    """A rank that sits out sends one buffer, its neighbour one more than the others."""
    extra = p - (1 << (levels(p) - 1))
    sent, messages = counts("all-reduce", "doubling", p)
    rounds = levels(p) - 1
    wanted = [rounds + 1, 1] * extra + [rounds] * (p - 2 * extra)
    assert messages.tolist() == wanted
    assert sent.tolist() == [n * M for n in wanted]


# ---- two levels


nodes = pytest.mark.parametrize(
    ("p", "q"), [*product((1, 2, 3, 7, 8, 12, 13, 16), (1, 2, 3, 4, 8))]
)
"""Ranks, and how many of them a node has."""


@nodes
def test_the_tree_uses_inner_links_and_the_ring_outer_ones(p: int, q: int) -> None:
    on = Network(Link(5e-6, 1e-10), 2e-11, Link(1e-6, 1e-11), q)
    h, n, nbytes = levels(min(p, q)), -(-p // q), 1e6
    tree = h * (2e-6 + 2 * nbytes * 1e-11 + nbytes * 2e-11)
    ring = (n - 1) * (1e-5 + nbytes / n * (2e-10 + 2e-11))
    assert close(price(hierarchical(q), p, nbytes, on).seconds, tree + ring)


@nodes
def test_nodes_sum_in_their_memory_and_their_leaders_send(p: int, q: int) -> None:
    on, nbytes = Network(Link(5e-6, 1e-10), 2e-11, Link(1e-6, 1e-11), q), 10**6
    o = simulate("all-reduce", "hierarchical", p, nbytes, on)
    nodes = -(-p // q)
    assert o["sent"]["most"] == pytest.approx(2 * (nodes - 1) / nodes * nbytes)
    ring = (nodes - 1) * (1e-5 + nbytes / nodes * (2e-10 + 2e-11))
    together = min(p, q)
    memory = (together > 1) * (2e-6 + nbytes * (2e-11 + (together - 1) * 2e-11))
    assert close(o["seconds"], memory + ring)
    assert close(o["plan"]["seconds"], o["seconds"])


@pytest.mark.parametrize(("inside", "outside"), [(1e-6, 5e-6), (5e-6, 1e-6)])
def test_a_ring_is_as_fast_as_its_slowest_link(inside: float, outside: float) -> None:
    on = Network(Link(outside, 1e-10), 0.0, Link(inside, 1e-10), 4)
    seconds = price(ALGORITHMS["ring"], 12, 12e4, on).seconds
    assert close(seconds, 22 * (5e-6 + 1e4 * 1e-10))


def test_messages_that_leave_a_node_share_its_link() -> None:
    """Ranks 0, 1 and 2, 3 are nodes: only in the round at distance 2 do two messages leave each."""
    on = Network(Link(1.0, 1.0), 0.0, Link(0.0, 0.0), 2)
    paid = price(REDUCE_SCATTERS["p2p"], 4, 4 * 10.0, on)
    assert paid.seconds == (1 + 10) + (1 + 2 * 10) + (1 + 10)
    assert price(REDUCE_SCATTERS["p2p"], 4, 40.0, Network(Link(1.0, 1.0))).seconds == 3 * (1 + 10)


def one_round(*pairs: tuple[int, int], p: int) -> Algorithm:
    to, source = np.full(p, -1), np.full(p, -1)
    for s, t in pairs:
        to[s], source[t] = t, s
    step = Step(to, (0, 1), source, (0, 1), True)
    return Algorithm(lambda p: 1, lambda p: 1, lambda t, r, p: step)


@pytest.mark.parametrize(
    ("pairs", "sharing"),
    [
        ([(0, 2)], 1),
        ([(0, 2), (3, 1)], 1),  # one out and one in: links are full duplex
        ([(0, 2), (4, 3)], 2),  # two into a node
        ([(0, 2), (1, 4)], 2),  # two out of a node
        ([(0, 2), (1, 3), (4, 1)], 2),
        ([(0, 2), (4, 5)], 1),  # inside a node nothing is shared
    ],
)
def test_messages_in_one_direction_share_a_link(pairs: list[tuple[int, int]], sharing: int) -> None:
    on = Network(Link(1.0, 1.0), 0.0, Link(0.5, 0.25), 2)
    assert price(one_round(*pairs, p=6), 6, 10.0, on).seconds == 1 + sharing * 10


def test_the_receiver_pays_for_adding() -> None:
    on = Network(Link(1.0, 0.0), 1.0)
    assert price(one_round((0, 1), p=2), 2, 10.0, on).seconds == 11
    assert price(BROADCASTS["tree"], 2, 10.0, on).seconds == 1


def test_a_message_waits_for_sender_and_receiver() -> None:
    """Rank 0 receives from rank 1 while 2 and 3 wait, then from these one by one."""
    paid = price(REDUCES["ps"], 4, 10.0, Network(Link(1.0, 1.0)))
    assert paid.seconds == 3 * 11
    assert paid.rounds == 3
