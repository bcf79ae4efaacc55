"""Parameters between steps: where ranks have parts of the values, all of them read together."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from nnmpi.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore


def stores_of(parameters: Iterable[Parameter]) -> list[FlatStore]:
    """The flat stores that hold these parameters, each once."""
    stores = dict.fromkeys(p.store for p in parameters)
    return [store for store in stores if isinstance(store, FlatStore)]


@contextmanager
def reading(parameters: Iterable[Parameter]) -> Iterator[None]:
    """Within it these parameters are read between steps, by all ranks along dp in one order."""
    with ExitStack() as stack:
        for store in stores_of(parameters):
            stack.enter_context(store.reading())
        yield


def values_of(p: Parameter) -> Array:
    """The values of p between steps; every rank along dp asks for the same ones, in one order."""
    with reading([p]):
        return p.data
