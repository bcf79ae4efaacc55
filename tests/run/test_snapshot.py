"""A run that goes on from a snapshot in the same process, on threads."""

from collections.abc import Callable

import laws_snapshot
import pytest

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("law", laws_snapshot.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
