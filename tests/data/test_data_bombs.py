"""Data that do not fit into memory are refused before they are read or made."""

from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi import data
from nnmpi.data import files


def test_an_array_larger_than_the_memory_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "memory_size", lambda: 150)
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 2)), y=np.arange(10))
    with refused("a.npz: its arrays have 496 bytes", "150 bytes of memory"):
        data.load(str(tmp_path / "a.npz"))
    with refused("synthetic:10:2:5", "an array of 6x10 has 240 bytes", "150 bytes of memory"):
        data.load("synthetic:10:2:5")


@pytest.mark.parametrize(
    "argument", ["10:2:999999999999999999", "999999999999999999:2:1", f"{'9' * 5000}:2:3"]
)
def test_synthetic_data_without_end_are_refused(argument: str) -> None:
    with refused("synthetic:", "memory" if len(argument) < 99 else "at most 18 digits"):
        data.load(f"synthetic:{argument}")
