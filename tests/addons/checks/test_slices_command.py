"""Reproducible training: what it tells, what it refuses, and the threads of the command."""

from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel import strategies


def test_it_tells_of_its_slices() -> None:
    def ended(comm: Comm) -> dict[str, Any]:
        return Trainer(Config(reproducible=True, slices=3), comm=comm).describe()

    for event in threads.run(2, ended):
        assert (event["reproducible"], event["slices"]) == (True, 3)


@pytest.mark.parametrize(
    ("options", "ranks", "words"),
    [
        ({"slices": 3}, 4, ("3 slices", "4 ranks", "--slices 4")),
        ({"slices": 1}, 2, ("1 slice on", "at most 1 rank")),
        ({"slices": 0}, 1, ("slices 0", "at least 1")),
        ({"slices": -2}, 2, ("slices -2", "at least 1")),
        ({"micro_batches": 2}, 2, ("micro_batches 2", "leave one")),
        ({"sync": "asp"}, 2, ("1 server (sync asp)", "leave it out")),
        ({"sync": "ssp", "staleness": 2}, 2, ("1 server (sync ssp)", "leave it out")),
        ({"servers": 1}, 2, ("1 server (sync bsp)", "leave it out")),
        ({"allreduce": "ring"}, 2, ("allreduce ring", "leave one")),
        ({"bucket_mb": 2.0}, 2, ("bucket_mb 2.0", "leave one")),
        ({"overlap": False}, 2, ("overlap False", "leave one")),
        ({"progress": "thread"}, 2, ("progress thread", "leave one")),
        ({"device": "cuda"}, 1, ("device cuda", "use --device cpu")),
        ({"dp": 3}, 2, ("dp 3", "2 ranks")),
    ],
)
def test_other_layouts_are_refused(options: dict[str, Any], ranks: int, words: Any) -> None:
    with refused(*words):
        strategies.check(Config(reproducible=True, **options), ranks)
    strategies.check(Config(reproducible=True, slices=4), 4)


@pytest.mark.parametrize(("slices", "batch", "largest"), [(8, 4, 4), (2**62, 2**62, 1437)])
def test_more_slices_than_a_batch_has_samples_are_refused(
    slices: int, batch: int, largest: int
) -> None:
    config = Config(reproducible=True, slices=slices, batch_size=batch)
    with refused(f"{slices} slices of batches of {largest}", f"--slices {largest} or fewer"):
        Trainer(config)


def test_slices_mean_nothing_without_reproducible() -> None:
    with refused("slices 2 without reproducible", "add --reproducible"):
        strategies.check(Config(slices=2), 4)
