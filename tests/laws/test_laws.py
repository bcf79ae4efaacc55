"""The table of laws on ranks that are threads."""

import pytest
from helpers.laws import Law, table

from nnmpi.comm import thread_ranks

OF_ALL = (("threads", ()), ("threads_all", pytest.mark.long))
LAWS = [
    pytest.param(law, ranks, marks=marks, id=f"{name} {ranks}")
    for column, marks in OF_ALL
    for name, law, ranks in table(column)
]


@pytest.mark.parametrize(("law", "ranks"), LAWS)
def test_law(law: Law, ranks: int) -> None:
    thread_ranks.run(ranks, law)
