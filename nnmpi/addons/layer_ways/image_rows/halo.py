"""The halo of images that are divided along rows: rows of other ranks on which a rank's outputs
depend.

Each rank has some rows of each image (N, C, H, W), (N, C, h, W), nearly as many as any other rank,
both of the input and of the output of a layer. Gradients of halo rows are sent back.

    window 3, stride 1, padding 1, six rows on two ranks:

                 rank 0                     rank 1
    input      0 1 2                            3 4 5
    needed   p 0 1 2 3                        2 3 4 5 p      p: padding
    output     0 1 2                            3 4 5

    forward        row 2 to rank 1, row 3 to rank 0
    backward       the gradient of row 3 to rank 1, which adds it; that of row 2 to rank 0

Which rows are sent follows from the rows that each rank has and needs: one or many, from a
neighbour, or from several ranks if the ranks have fewer rows than a window. There is one message
for each pair of ranks and direction.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Self

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.window import Window, Windows, windows
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.parallel.tensor.ops import all_to_all

Rows = tuple[int, int]
"""Rows start to stop - 1 of an image; rows below 0 or beyond the last one are padding."""

WINDOW_SIZES = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
"""The attributes of a layer that define its windows, with their values for layers without them."""


def windows_of(settings: Mapping[str, Any]) -> Windows:
    """Returns the pooling or convolution windows of an image layer, from its attributes (kernel
    size, stride, padding, dilation); without such attributes, windows of one pixel."""
    return windows(*(settings.get(name, usual) for name, usual in WINDOW_SIZES.items()))


class Halo(NamedTuple):
    """Which rows of an image a rank needs to compute its output, and which rows ranks send to each
    other for that.

    own       the rows that this rank has
    needed    the rows on which this rank's outputs depend, padding included
    sends     for each rank: the rows that this rank sends to it
    receives  for each rank: the rows that this rank receives from it
    """

    rank: int
    own: Rows
    needed: Rows
    sends: tuple[Rows, ...]
    receives: tuple[Rows, ...]

    @classmethod
    def of(cls, window: Window, height: int, ranks: int, rank: int) -> Self:
        """Returns the Halo of a rank for images with `height` rows, by a layer's window along
        rows."""
        owned = [*pairwise(bounds(height, ranks))]
        needed = [window.inputs(*outs) for outs in pairwise(bounds(window.outputs(height), ranks))]
        sends = (_within(rows, owned[rank]) for rows in needed)
        receives = (_within(needed[rank], rows) for rows in owned)
        return cls(rank, owned[rank], needed[rank], tuple(sends), tuple(receives))

    @property
    def height(self) -> int:
        """The number of rows that this rank needs, padding included."""
        return self.needed[1] - self.needed[0]

    def sent(self) -> list[int]:
        """Returns, for each other rank, how many rows of a sample this rank sends to it."""
        return [b - a for r, (a, b) in enumerate(self.sends) if r != self.rank]

    def received(self) -> list[int]:
        """Returns, for each other rank, how many rows of a sample this rank receives from it."""
        return [b - a for r, (a, b) in enumerate(self.receives) if r != self.rank]

    def fetch(self, x: Array, into: Array, comm: Comm) -> None:
        """Exchanges rows, and fills `into` (N, needed rows, W, C) with all rows that this rank
        needs; x (N, h, W, C) has the rows of this rank. Padding rows are not written."""
        arrived = _exchanged(x, self.own[0], self.sends, self.receives, comm)
        for (a, b), rows in zip(self.receives, arrived, strict=True):
            into[:, a - self.needed[0] : b - self.needed[0]] = rows

    def add_back(self, d: Array, comm: Comm) -> Array:
        """Returns the gradient of this rank's rows x, given d (N, needed rows, W, C): the transpose
        of `fetch`, which adds in the order of ranks, and reuses the memory of d where possible."""
        first, (lo, hi) = self.needed[0], self.own
        arrived = _exchanged(d, first, self.receives, self.sends, comm)
        dx = arrived[self.rank]
        if self.sends[self.rank] != self.own:
            a, b = self.sends[self.rank]
            dx = xp_of(d).zeros((len(d), hi - lo, *d.shape[2:]), d.dtype)
            dx[:, a - lo : b - lo] = arrived[self.rank]
        for r, (a, b) in enumerate(self.sends):  # in a fixed order, for the same bits in every run
            if r != self.rank:
                dx[:, a - lo : b - lo] += arrived[r]
        return dx


def _exchanged(
    x: Array, first: int, sends: tuple[Rows, ...], receives: tuple[Rows, ...], comm: Comm
) -> list[Array]:
    """Sends rows `sends[r]` of x (N, rows, W, C), which begins with row `first`, to each rank r,
    and returns the rows `receives[r]` of each. Rows of a single image are sent without a copy."""
    n, _, *size = x.shape
    parts = [x[:, a - first : b - first] for a, b in sends]
    return all_to_all(parts, [(n, b - a, *size) for a, b in receives], comm)


def _within(rows: Rows, among: Rows) -> Rows:
    """Returns the overlap of two ranges of rows, perhaps empty."""
    start, stop = (min(max(row, among[0]), among[1]) for row in rows)
    return start, stop
