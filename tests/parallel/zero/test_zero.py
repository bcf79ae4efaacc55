"""The laws of ZeRO on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_zero

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [1, 3, 4])  # 2 as processes of MPI
@pytest.mark.parametrize("law", laws_zero.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
