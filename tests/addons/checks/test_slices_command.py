"""Reproducible training: what it tells, what it refuses, and the threads of the command."""

import tomllib
from pathlib import Path
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


FILE = Path(__file__).with_name("beside_reproducible.toml")
ROWS = tomllib.loads(FILE.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["options"]))
def test_other_layouts_are_refused(row: dict[str, Any]) -> None:
    with refused(*row["says"]):
        strategies.check(Config(reproducible=True, **row["options"]), row["ranks"])
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
