"""The laws of further layers on ranks that are threads."""

from collections.abc import Callable

import pytest
from helpers.training import laws_layers, laws_recurrent

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

LONG = pytest.param(2, marks=pytest.mark.long)


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("law", laws_layers.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)


@pytest.mark.parametrize("p", [LONG, 3])  # 2 over MPI
@pytest.mark.parametrize("law", laws_recurrent.LAWS, ids=lambda law: law.__name__)
def test_law_of_recurrent_layers(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)
