"""The table of conformance where ranks compute on a device, on ranks that are threads."""

import pytest
from helpers.datafiles import refused
from helpers.training.conformance import FAMILIES, Row, rows_on_device
from helpers.training.on_device import on_device

from nnmpi.comm import thread_ranks as threads

IN_MEMORY = ("allreduce=shared", "allreduce=hierarchical")

ROWS = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for family in FAMILIES
    for row, is_of_sample in rows_on_device(family)
    if not any(way in row.name.split() for way in IN_MEMORY)
]

REFUSED = {
    row.name: row
    for family in FAMILIES
    for row, _ in rows_on_device(family)
    if any(way in row.name.split() for way in IN_MEMORY)
}


@pytest.mark.parametrize("row", ROWS)
def test_a_layout_trains_on_a_device_as_one_rank_on_the_cpu(row: Row) -> None:
    with on_device():
        threads.run(row.ranks, row.trains_on_device)


@pytest.mark.parametrize("way", IN_MEMORY)
def test_no_other_row_is_refused_than_those_of_memory_that_ranks_share(way: str) -> None:
    found = [row for name, row in REFUSED.items() if way in name.split()]
    assert found
    for row in found:
        with on_device(), refused("device cuda with", way.replace("=", " ")):
            threads.run(row.ranks, row.trains_on_device)
