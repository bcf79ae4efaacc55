"""FlatState: the state arrays of an optimizer (such as momentum), each flat, and only for the
elements of parameters that this rank updates.

parameter      [ a b c d e f g | padding ]
slices           (1, 3)  (5, 7)                this rank updates b, c, f and g
state array    [ b c f g padding ]             the parameters follow each other
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from nnmpi.arrays.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore


class FlatState:
    """The state arrays of an optimizer. Each is flat and has this rank's elements of all
    parameters, one parameter after the other, in the order of memory.

    arrays   the state arrays by name, such as "momentum_buffer"
    starts   the index at which each parameter begins in an array, and last the length of an array
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[Parameter]) -> None:
        self._parameters, self._slices = parameters, _owned_slices(parameters)
        lengths = (sum(stop - start for start, stop in slices) for slices in self._slices)
        self.starts, self.arrays = list(accumulate(lengths, initial=0)), dict[str, Array]()
        for name in names:
            self.add(name)

    def add(self, name: str) -> Array:
        """Adds a state array of zeros, and returns it."""
        store = store_of(self._parameters)
        self.arrays[name] = store.on.xp.zeros(self.starts[-1], store.updated_dtype)
        return self.arrays[name]

    @property
    def fits(self) -> bool:
        """True if this rank still updates the slices for which state arrays were made."""
        return self._slices == _owned_slices(self._parameters)

    def convert(self) -> None:
        """Moves the state arrays to the dtype and the device of the parameter values."""
        store = store_of(self._parameters)
        for name, array in self.arrays.items():
            self.arrays[name] = store.on.asarray(array, store.updated_dtype)

    def ranges(self, i: int) -> Iterator[tuple[int, int, int]]:
        """Yields (lo, hi, start) for the ranges of parameter i that this rank updates; `start` is
        the index of element lo in a state array. An empty parameter has one empty range."""
        at, size = self.starts[i], self._parameters[i].size
        if not size:
            yield 0, 0, at
        for lo, hi in self._slices[i]:
            if lo < min(hi, size):
                yield lo, min(hi, size), at
            at += hi - lo


def store_of(parameters: Sequence[Parameter]) -> FlatStore:
    """Returns the flat store of parameters of one dtype and one device: the first one's."""
    store = parameters[0].store
    assert isinstance(store, FlatStore)
    return store


def _owned_slices(parameters: Sequence[Parameter]) -> list[list[tuple[int, int]]]:
    """Returns, for each parameter, the slices that this rank updates, padding included."""
    owned = []
    for p in parameters:
        assert isinstance(p.store, FlatStore)
        start, end = p.store.spans[p.index]
        shards = p.store.own_shards(start, end)
        owned.append([(shard.start - start, shard.stop - start) for shard in shards])
    return owned
