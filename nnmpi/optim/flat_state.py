"""FlatState: what an optimizer adds up over steps, of the numbers that one rank updates.

parameter      [ a b c d e f g | padding ]
stretches        (1, 3)  (5, 7)                this rank updates b, c, f and g
running sum    [ b c f g padding ]             of one parameter after the other

"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from nnmpi.arrays.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Range
from nnmpi.nn.store import FlatStore


class FlatState:
    """Running sums of parameters, in the order of the memory of each.

    arrays   each running sum, by name
    starts   where the numbers of each parameter begin in an array, and the length of an array
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[Parameter]) -> None:
        self._parameters, self._stretches = parameters, _own_stretches(parameters)
        lengths = (sum(stop - start for start, stop in stretches) for stretches in self._stretches)
        self.starts = list(accumulate(lengths, initial=0))
        zeros, dtype = store_of(parameters).on.xp.zeros, store_of(parameters).updated_dtype
        self.arrays = {name: zeros(self.starts[-1], dtype) for name in names}

    @property
    def fits(self) -> bool:
        """Whether this rank still updates these numbers."""
        return self._stretches == _own_stretches(self._parameters)

    def numbers(self, name: str, i: int, lo: int, hi: int) -> Array:
        """The memory of the running sum of numbers lo to hi - 1 of parameter i, which are here."""
        at, stretches = self.starts[i], self._stretches[i]  # without a `Range`, which takes longer
        for start, stop in stretches:
            if start <= lo < stop:
                break
            at += stop - start
        return self.arrays[name][at + lo - start : at + hi - start]

    def convert(self) -> None:
        """Moves them to the type and the device of what is updated."""
        like = store_of(self._parameters)
        for name, sums in self.arrays.items():
            self.arrays[name] = like.on.asarray(sums, like.updated_dtype)

    def ranges(self, i: int) -> Iterator[tuple[Range, int]]:
        """The ranges of parameter i that are here, and where each begins in an array."""
        at, place = self.starts[i], self._parameters[i].place
        for lo, stop in self._stretches[i]:
            if lo < min(stop, place.size):
                yield place.range(lo, min(stop, place.size)), at
            at += stop - lo


def store_of(parameters: Sequence[Parameter]) -> FlatStore:
    """The store of the first parameter: all have one type and one device."""
    store = parameters[0].store
    assert isinstance(store, FlatStore)
    return store


def _own_stretches(parameters: Sequence[Parameter]) -> list[list[tuple[int, int]]]:
    """(start, stop) of what this rank updates of each parameter, with padding."""
    of_parameters = []
    for p in parameters:
        assert isinstance(p.store, FlatStore)
        start, end = p.store.spans[p.index]
        shards = p.store.own_shards(start, end)
        of_parameters.append([(shard.start - start, shard.stop - start) for shard in shards])
    return of_parameters
