"""The table of conformance on ranks that are threads."""

import pytest
from helpers.training.conformance import FAMILIES, Row, rows_on_threads

from nnmpi.comm import thread_ranks as threads

ROWS = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for family in FAMILIES
    for row, is_of_sample in rows_on_threads(family)
]


@pytest.mark.parametrize("row", ROWS)
def test_a_layout_trains_as_one_rank(row: Row) -> None:
    threads.run(row.ranks, row.trains_as_one_rank)
