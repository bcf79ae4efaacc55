"""The table of conformance on ranks that are threads."""

import pytest
from helpers.training import laws_halves
from helpers.training.conformance import (
    FAMILIES,
    RANKS_OVER_MPI,
    Row,
    rows,
    rows_on_threads,
    rows_over_mpi,
    words_of,
)

from nnmpi.comm import thread_ranks as threads

FOUND = [*rows_on_threads()]
ROWS = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for row, is_of_sample in FOUND
]


@pytest.mark.parametrize("row", ROWS)
def test_a_layout_trains_as_one_rank(row: Row) -> None:
    threads.run(row.ranks, row.trains_as_one_rank)


IN_16_BITS = {
    str(laws_halves.of_one_rank(row.case)): row
    for row in rows("each family in 16 bits")
    if row.case is not None
}
"""A row of each thing that is trained."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("row", IN_16_BITS.values(), ids=lambda row: row.name)
def test_one_rank_in_16_bits_is_near_float64(row: Row) -> None:
    assert row.case is not None
    laws_halves.first_loss_is_near_float64(row.case)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_have_each_model_and_each_option(family: str) -> None:
    sample = {row.name for row, is_of_sample in FOUND if is_of_sample}
    own = rows(family)
    found = {word for row in own if row.name in sample for word in words_of(family, row)}
    wanted = {word for row in own for word in words_of(family, row)}
    assert {word for word in wanted - found if "=" not in word} == set()
    over_mpi = (row for ranks in RANKS_OVER_MPI for row in rows_over_mpi(family, ranks))
    assert any(is_of_sample for _, is_of_sample in over_mpi)


def test_the_sample_has_each_value_of_an_option() -> None:
    values = [{word for word in row.name.split() if "=" in word} for row, _ in FOUND]
    sample = [one for one, (_, is_of_sample) in zip(values, FOUND, strict=True) if is_of_sample]
    assert set.union(*sample) == set.union(*values)
