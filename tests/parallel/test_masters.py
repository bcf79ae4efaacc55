"""Masters of parameters in 16 bits, on ranks that are threads."""

from pathlib import Path

import pytest
from helpers.training import laws_masters
from helpers.training.laws_masters import LAYOUTS

from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_the_rounding_of_masters(layout: str, dtype: str) -> None:
    threads.run(2, laws_masters.values_are_the_rounding_of_masters, layout, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_wins(layout: str) -> None:
    threads.run(2, laws_masters.what_is_written_wins, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_has_the_masters(layout: str, tmp_path: Path) -> None:
    threads.run(3, laws_masters.a_file_has_the_masters, layout, tmp_path / "m.safetensors")
