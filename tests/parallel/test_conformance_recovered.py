"""Rows of the table of conformance in which a rank is killed, on ranks as threads."""

import numpy as np
import pytest
from helpers.training import laws_halves, recovered
from helpers.training.conformance import FAMILIES, Row, resumed_rows
from helpers.training.pipelined import BOUND

ELSEWHERE = ("data parallel", "pipelines", "tensor parallel", "zero")
"""Families of which tests/simulation has layouts; their rows are for --all."""

ROWS = [
    pytest.param(
        row,
        marks=() if is_of_sample and family not in ELSEWHERE else pytest.mark.long,
        id=row.name,
    )
    for family in FAMILIES
    for row, is_of_sample in resumed_rows(family, 1)
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("row", ROWS)
def test_a_layout_goes_on_without_a_rank(row: Row) -> None:
    assert row.case is not None
    options = {"dtype": "float64", "epochs": 2, "batch_size": 24, "backup": 1, **row.case}
    wanted, operations = recovered.counted(lambda: recovered.run_of(row.ranks, options, {}))
    rng = np.random.default_rng([*row.name.encode()])
    victim = int(rng.integers(row.ranks))
    killed = {victim: int(rng.integers(1, operations[victim]))}
    bound = laws_halves.BOUNDS.get(options["dtype"], BOUND)
    recovered.check(recovered.run_of(row.ranks, options, killed), wanted, bound)
