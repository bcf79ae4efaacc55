"""The laws of further layers on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_layers, laws_recurrent

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize(
    "law", [*laws_layers.LAWS, *laws_recurrent.LAWS], ids=lambda law: law.__name__
)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
