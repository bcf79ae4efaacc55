"""The messages that `simulate collective` prints, beside those that ranks send."""

from collections import Counter

import pytest

from nnmpi.addons.simulator.collective import OPERATIONS, simulate
from nnmpi.collectives.price import Link, Network
from nnmpi.collectives.step import Algorithm

NETWORK = Network(Link(5e-6, 1e-10))
ALGORITHMS = [(o, name) for o, operation in OPERATIONS.items() for name in operation.algorithms]


def sent(algorithm: Algorithm, p: int) -> list[int]:
    """By the messages of each rank's own steps, as they are carried out."""
    chunks, counts = algorithm.chunks(p), Counter[int]()
    for r in range(p):
        counts[r] = sum(len(step.sends(chunks)) for step in algorithm.steps(r, p))
    return [counts[r] for r in range(p)]


@pytest.mark.parametrize(("operation", "name"), ALGORITHMS)
def test_printed_messages_are_those_of_the_steps_of_ranks(operation: str, name: str) -> None:
    for p in (*range(1, 14), 16, 17, 25, 33):
        wanted = sent(OPERATIONS[operation].algorithms[name], p)
        found = simulate(operation, name, p, 36_000, NETWORK)["messages"]
        assert (found["least"], found["most"]) == (min(wanted), max(wanted)), p
        assert found["mean"] * p == pytest.approx(sum(wanted)), p
