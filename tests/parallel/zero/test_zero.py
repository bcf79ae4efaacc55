"""The laws of ZeRO on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_zero

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [1, 3, pytest.param(4, marks=pytest.mark.long)])  # 2 over MPI
@pytest.mark.parametrize("law", laws_zero.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
