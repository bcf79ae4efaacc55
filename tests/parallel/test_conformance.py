"""The table of conformance on ranks that are threads."""

import pytest
from helpers.training.conformance import FAMILIES, Row, rows

from nnmpi.comm import thread_ranks as threads

ROWS = [row for family in FAMILIES for row in rows(family)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_layout_trains_as_one_rank(row: Row) -> None:
    threads.run(row.ranks, row.trains_as_one_rank)
