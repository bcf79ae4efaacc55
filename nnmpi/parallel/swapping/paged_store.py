"""PagedStore: a whole copy of the parameters on this rank, which is updated piece by piece."""

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.nn.store import Operands
from nnmpi.parallel.stores.local import LocalStore, block_sums
from nnmpi.parallel.swapping.model_pages import ModelPages


class PagedStore(LocalStore):
    """A store whose values and gradients are on disk while they are not in use.

    pages   brings arrays to memory piece by piece; None on paper, where there is no disk
    """

    pages: ModelPages | None = None

    def squares_of(self, gradient: Array) -> Array:
        if self.pages is None:
            return super().squares_of(gradient)
        pieces = (block_sums(piece, self.factor) for (piece,) in self.pages.in_pieces(gradient))
        return np.array(sum(chain.from_iterable(pieces)))

    def updates(
        self, start: int, end: int, state: Mapping[str, Array], at: int, t: int
    ) -> Iterator[Operands]:
        for x in super().updates(start, end, state, at, t):
            yield from (x,) if self.pages is None else _pieces(x, self.pages)

    def scale(self, array: Array, factor: float) -> None:
        for (piece,) in [(array,)] if self.pages is None else self.pages.in_pieces(array):
            super().scale(piece, factor)


def _pieces(x: Operands, pages: ModelPages) -> Iterator[Operands]:
    """Yields the operands of an update in pieces that are brought to memory one after the
    other."""
    for values, grads, *rest in pages.in_pieces(x.values, x.grads, *x.sums.values()):
        state = dict(zip(x.sums, rest, strict=True))
        yield x._replace(values=values, grads=grads, sums=state)
