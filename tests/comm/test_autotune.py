"""The all-reduces that `auto` times: those that a price does not rule out."""

from itertools import product

import pytest

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Link, Network, price
from nnmpi.comm.allreduce.autotune import Cost, candidates, rules_out
from nnmpi.comm.allreduce.dispatch import NAMES, NEED_SETUP

LINKS = [Link(*x) for x in product((0.0, 1e-6, 1e-4), (1e-11, 1e-9)) if any(x)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("p", [2, 3, 4, 6, 7, 8, 16, 17, 64])
def test_what_is_left_out_is_never_the_fastest(p: int) -> None:
    timed = candidates(p)
    assert timed == [name for name in NAMES if name in timed]
    assert {"ring", "p2p", "doubling", *NEED_SETUP} <= {*timed}
    for link, nbytes in product(LINKS, (8.0, 1e4, 1e8)):
        on = Network(link)
        seconds = {name: price(a, p, nbytes, on).seconds for name, a in ALGORITHMS.items()}
        fastest = min(seconds[name] for name in timed if name in seconds)
        assert all(seconds[name] >= fastest * (1 - 1e-9) for name in NAMES if name in seconds)


def test_no_more_are_timed_than_ten_from_three_ranks_on() -> None:
    """Trees and servers move more bytes, and ports of one link more messages, than others."""
    for p in (3, 4, 5, 8, 13, 16, 100, 1000, 100_000):
        assert not {"tree", "ps", "double-tree", "dual-root", "bucket", "swing"} & {*candidates(p)}
        assert len(candidates(p)) <= 10


RULES = {  # bytes, rounds, messages; whether (1.5, 4, 4) rules them out
    "more bytes": ((2.0, 6, 6), True),
    "more messages in as many rounds": ((1.5, 4, 8), True),
    "the same": ((1.5, 4, 4), False),
    "more rounds of as many bytes": ((1.5, 6, 6), False),
    "fewer rounds": ((2.0, 2, 6), False),
    "fewer messages": ((4.0, 4, 2), False),
}


@pytest.mark.parametrize("case", RULES.values(), ids=RULES)
def test_what_rules_out_an_algorithm(case: tuple[Cost, bool]) -> None:
    other, is_ruled_out = case
    assert rules_out((1.5, 4, 4), other) == is_ruled_out
