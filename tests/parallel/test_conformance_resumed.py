"""Rows of the table of conformance that are resumed from a checkpoint, on ranks as threads."""

from functools import partial

import pytest
from helpers.training.conformance import FAMILIES, Row, resumed_rows
from helpers.training.laws_checkpoints import a_row_goes_on_with_the_same_bits

from nnmpi.comm import thread_ranks as threads

ROWS = [
    pytest.param(row, 1 + k % 9, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for family in FAMILIES
    for k, (row, is_of_sample) in enumerate(resumed_rows(family, 0))
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("row", "at"), ROWS)
def test_a_layout_goes_on_with_the_same_bits(row: Row, at: int) -> None:
    """From any step of ten, of two epochs."""
    assert row.case is not None
    threads.run(row.ranks, partial(a_row_goes_on_with_the_same_bits, row.case, at))
