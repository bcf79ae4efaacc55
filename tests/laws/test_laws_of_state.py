"""The laws of what training keeps, on ranks that are threads."""

import pytest
from helpers.laws import Law, on_threads

from nnmpi.comm import thread_ranks


@pytest.mark.parametrize(("law", "ranks"), on_threads(of_state=True))
def test_law(law: Law, ranks: int) -> None:
    thread_ranks.run(ranks, law)
