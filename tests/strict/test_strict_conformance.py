"""The table of conformance where ranks compute on a device, on ranks that are threads."""

import pytest
from helpers.datafiles import refused
from helpers.device import needs_device
from helpers.training.conformance import FAMILIES, Row, rows_on_device
from helpers.training.on_device import on_device

from nnmpi.comm import thread_ranks as threads

pytestmark = needs_device
ROWS = [found for family in FAMILIES for found in rows_on_device(family)]
TRAINED = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for row, is_of_sample in ROWS
    if not row.shares_memory
]
REFUSED = [pytest.param(row, id=row.name) for row, _ in ROWS if row.shares_memory]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("row", TRAINED)
def test_a_layout_trains_on_a_device_as_one_rank_on_the_cpu(row: Row) -> None:
    with on_device():
        threads.run(row.ranks, row.trains_as_one_rank)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("row", REFUSED)
def test_sums_in_memory_that_ranks_share_are_refused(row: Row) -> None:
    with on_device(), refused("with device cuda", "use --allreduce ring, or use --device cpu"):
        threads.run(row.ranks, row.trains_as_one_rank)
