"""In memory: how stores go through numbers that are all there; who has some of them on disk has
another way (`swapping/model_pages.py`)."""

from collections.abc import Iterator, Sequence

from nnmpi.arrays.backend import Array


class InMemory:
    """All numbers of a store are in memory."""

    def in_turn(self, *arrays: Array) -> Iterator[Sequence[Array]]:
        """Arrays of one length, or the same pieces of each of them, one behind the other; what is
        done with them is over when the next ones are asked for."""
        yield arrays


IN_MEMORY = InMemory()
