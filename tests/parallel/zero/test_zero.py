"""The laws of ZeRO on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_zero, laws_zero_reads

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

LAWS = [*laws_zero.LAWS, *laws_zero_reads.LAWS]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
