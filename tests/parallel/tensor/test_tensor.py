"""The laws of tensor parallelism on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.tensor.laws_tensor import LAWS

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [1, 2, 4])  # 3 as processes of MPI
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
