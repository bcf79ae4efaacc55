"""Samplers, and loaders with them, beside PyTorch's where it is installed."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import in_both, needs_torch, pytorch

import nnmpi
from nnmpi.utils import data

N = 10


class Evens(data.Sampler[int]):
    """A sampler of a user."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, N, 2))

    def __len__(self) -> int:
        return N // 2


CASES: dict[str, tuple[Callable[[Any, Any], Any], int, bool]] = {
    "sequential": (lambda d, x: d.SequentialSampler(x), N, True),
    "random": (lambda d, x: d.RandomSampler(x), N, True),
    "random, more": (lambda d, x: d.RandomSampler(x, num_samples=23), 23, False),
    "random, fewer": (lambda d, x: d.RandomSampler(x, num_samples=4), 4, True),
    "random, replaced": (lambda d, x: d.RandomSampler(x, True), N, False),
    "subset": (lambda d, x: d.SubsetRandomSampler([7, 3, 5]), 3, True),
    "weighted": (lambda d, x: d.WeightedRandomSampler([0, 1, 2.5], 20), 20, False),
    "weighted, once": (lambda d, x: d.WeightedRandomSampler([0, 1, 2], 2, False), 2, True),
    "batches": (lambda d, x: d.BatchSampler(d.SequentialSampler(x), 4, False), 3, True),
    "full batches": (lambda d, x: d.BatchSampler(d.SequentialSampler(x), 4, True), 2, True),
}


@pytest.mark.parametrize("case", CASES)
def test_samplers(case: str) -> None:
    make, n, is_unique = CASES[case]
    sampler = make(data, range(N))
    found, again = [*sampler], [*sampler]
    assert (len(sampler), len(found)) == (n, n)
    assert (len({*map(str, found)}) == n) == is_unique
    is_fixed = case in ("sequential", "batches", "full batches")
    if is_fixed or n > 3:  # few draws may be the same twice
        assert (found == again) == is_fixed


def test_weights_are_probabilities() -> None:
    counts = np.bincount([*data.WeightedRandomSampler([0, 1, 3], 4000)])
    assert counts[0] == 0
    assert abs(counts[2] - 3000) < 5 * np.sqrt(4000 * 0.75 * 0.25)


@needs_torch
@pytest.mark.parametrize("case", CASES)
def test_lengths_and_indices_are_pytorchs(case: str) -> None:
    make, _, is_unique = CASES[case]

    ours, theirs = (make(n.utils.data, range(N)) for n in (nnmpi, pytorch()))
    assert (len(ours), len(found := [*ours])) == (len(theirs), len(expected := [*theirs]))
    if is_unique and "few" not in case:
        assert sorted(found) == sorted(expected)


LOADERS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a sampler": ({"batch_size": 2, "sampler": Evens()}, [[0, 20], [40, 60], [80]]),
    "a list": (
        {"batch_size": 2, "sampler": [3, 1, 4, 1, 5], "drop_last": True},
        [[30, 10], [40, 10]],
    ),
    "batches": ({"batch_sampler": [[1, 2, 3], [0], [9, 8]]}, [[10, 20, 30], [0], [90, 80]]),
    "batches, collated": ({"batch_sampler": [[1, 2], [0]], "collate_fn": sum}, [30, 0]),
    "a sampler, collated": (
        {"batch_size": 3, "sampler": Evens(), "collate_fn": list},
        [[0, 20, 40], [60, 80]],
    ),
}


@in_both
@pytest.mark.parametrize("case", LOADERS)
def test_loaders_take_samplers(case: str, library: str) -> None:
    (options, wanted), n = LOADERS[case], import_module(library)
    loader = n.utils.data.DataLoader([*range(0, 10 * N, 10)], **options)
    assert [b.tolist() if hasattr(b, "tolist") else b for b in loader] == wanted
    assert len(loader) == len(wanted)


def test_parts_and_tensors_take_samplers() -> None:
    rows = data.TensorDataset(np.arange(10) * 10)
    part = data.Subset(rows, [9, 8, 7, 6])
    for of, wanted in ((rows, [30, 10]), (part, [60, 80])):
        (batch,) = data.DataLoader(of, batch_sampler=[[3, 1]])
        assert batch[0].tolist() == wanted


def test_a_generator_draws_the_same_orders_whatever_else_is_drawn() -> None:
    def orders() -> list[Any]:
        g = nnmpi.Generator().manual_seed(3)
        loader = data.DataLoader(range(N), N, shuffle=True, generator=g)
        first, _, second = next(iter(loader)), nnmpi.randn(3), next(iter(loader))
        parts = data.random_split(range(N), [5, 5], generator=g)
        others = [[*data.RandomSampler(range(N), True, generator=g)]]
        others += [[*data.SubsetRandomSampler([*range(N)], g)]]
        others += [[*data.WeightedRandomSampler([1.0] * N, N, generator=g)]]
        return [first.tolist(), second.tolist(), *(p.indices.tolist() for p in parts), *others]

    first = orders()
    nnmpi.randn(7)
    before = nnmpi.nn.seeding.seed_state.get()
    assert orders() == first
    assert nnmpi.nn.seeding.seed_state.get().draws == before.draws + 1  # of randn alone
    assert first[0] != first[1]
    assert nnmpi.Generator().manual_seed(3).initial_seed() == 3


def test_arguments_that_do_not_go_together_are_refused() -> None:
    with refused("leave out shuffle=True"):
        data.DataLoader(range(N), 2, shuffle=True, sampler=Evens())
    for options in ({"batch_size": 2}, {"shuffle": True}, {"drop_last": True}, {"sampler": [1]}):
        with refused("a batch_sampler makes the batches"):
            data.DataLoader(range(N), batch_sampler=[[1]], **options)
    with pytest.raises(TypeError, match=r"generator is of type int: give nnmpi.Generator\(\)"):
        [*data.RandomSampler(range(N), generator=3)]  # type: ignore[arg-type]
    for call in (
        lambda: data.BatchSampler([1], 0, False),
        lambda: data.RandomSampler([1], num_samples=0),
    ):
        with refused("must be at least 1"):
            call()
