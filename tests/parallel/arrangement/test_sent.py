"""What is said that a rank sends in a collective, beside the plans that are carried out."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import Algorithm, bounds
from nnmpi.comm.allreduce.interpreter import make_plan
from nnmpi.parallel.arrangement import exchanges
from nnmpi.parallel.arrangement.exchanges import Traffic, algorithm_traffic, largest_receive

OF_RANKS = {f"{c.text} {name}": a for c in Collective for name, a in c.algorithms.items()}


def planned(
    a: Algorithm, p: int, r: int, edges: Sequence[int], dtype: np.dtype, narrow: bool = False
) -> Traffic:
    plan = make_plan(a, r, p, tuple(edges), dtype, exchanges.MESSAGE, narrow)
    parts = [message.bytes for move in plan.moves for message in move.out]
    return Traffic(sum(part.stop - part.start for part in parts), len(parts))


@pytest.mark.parametrize("longest", [1 << 30, 24])
@pytest.mark.parametrize("name", OF_RANKS)
def test_it_is_that_of_the_plan(name: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MESSAGE", longest)
    rng, algorithm = np.random.default_rng(0), OF_RANKS[name]
    for p in (2, 3, 4, 7):
        group, chunks = range(10, 10 + p), algorithm.chunks(p)
        for n, dtype in ((0, "float32"), (1, "float64"), (2 * p + 1, "float32"), (100, "float32")):
            r, kind = int(rng.integers(p)), np.dtype(dtype)
            cuts = [0, *sorted(rng.integers(0, n + 1, chunks - 1).tolist()), n]
            even = planned(algorithm, p, r, bounds(n, chunks), kind)
            assert algorithm_traffic(algorithm, group, 10 + r, n, kind) == even
            uneven = planned(algorithm, p, r, cuts, kind)
            assert algorithm_traffic(algorithm, group, 10 + r, n, kind, cuts) == uneven


@pytest.mark.parametrize("name", OF_RANKS)
def test_memory_to_receive_what_is_added_is_that_of_the_plan(name: str) -> None:
    rng, algorithm, kind = np.random.default_rng(0), OF_RANKS[name], np.dtype("float32")
    for p, n in product((2, 3, 4, 7), (0, 1, 15, 100)):
        r, chunks = int(rng.integers(p)), algorithm.chunks(p)
        cuts = [0, *sorted(rng.integers(0, n + 1, chunks - 1).tolist()), n]
        even = make_plan(algorithm, r, p, bounds(n, chunks), kind).scratch
        assert even <= largest_receive(algorithm, range(10, 10 + p), 10 + r, n) <= even + 1
        uneven = max(make_plan(algorithm, k, p, tuple(cuts), kind).scratch for k in range(p))
        most = max(largest_receive(algorithm, range(10, 10 + p), 10 + k, n, cuts) for k in range(p))
        assert most == uneven


@pytest.mark.parametrize("name", OF_RANKS)
def test_partial_sums_of_16_bits_travel_as_32_or_in_16(name: str) -> None:
    algorithm, half, n = OF_RANKS[name], np.dtype("float16"), 33
    for r, (narrow, sums) in product(range(5), ((False, np.dtype("float32")), (True, None))):
        of_plan = planned(algorithm, 5, r, bounds(n, algorithm.chunks(5)), half, narrow)
        assert algorithm_traffic(algorithm, range(5), r, n, half, sums=sums) == of_plan


def test_a_mean_over_steps_keeps_fractions_of_messages() -> None:
    assert Traffic(100, 2).over(30) == (3, 2 / 30)
    whole = Traffic(64, 6).over(2)
    assert whole == (32, 3)
    assert isinstance(whole.messages, int)
