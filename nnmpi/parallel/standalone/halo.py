"""Images cut by rows over ranks, and the halo: rows of others that outputs depend on.

An image (N, C, H, W) is cut by rows: each rank has (N, C, h, W). The gradients of the halo go back.

    window 3, stride 1, padding 1, six rows on two ranks:

                 rank 0                     rank 1
    input      0 1 2                            3 4 5
    needed   p 0 1 2 3                        2 3 4 5 p      p: padding
    output     0 1 2                            3 4 5

    forward        row 2 to rank 1, row 3 to rank 0
    backward       the gradient of row 3 to rank 1, which adds it; that of row 2 to rank 0

Which rows move follows from what each rank has and what it needs: one row or many, from the
neighbour or from several ranks, if parts are thinner than the window. There is one message for
each pair of ranks and direction.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.backend import Array
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.kernels.window import Window
from nnmpi.parallel.tensor import ops
from nnmpi.parallel.wire import Transfer, wire_for

GATHER = "halving"  # log2 p rounds: each rank contributes four numbers


class ImageRows(NamedTuple):
    """Rank r has the rows bounds[r] to bounds[r + 1] - 1 of images of this shape."""

    comm: Comm
    shape: tuple[int, ...]  # of the whole images: (N, C, H, W)
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, name: str, x: Tensor, comm: Comm) -> Self:
        """How x is cut, from the shapes of all ranks; every rank calls it."""
        if x.ndim != 4:
            raise ValueError(f"{name}: input of shape {x.shape}; rows of images are (N, C, h, W)")
        shapes = np.empty((comm.size, 4), np.int64)
        shapes[comm.rank] = x.shape
        comm.all_gather(shapes, GATHER)
        n, c, _, w = x.shape
        if (shapes[:, (0, 1, 3)] != (n, c, w)).any():
            all_shapes = ", ".join(str(tuple(shape)) for shape in shapes.tolist())
            raise ValueError(
                f"{name}: the ranks have rows of shapes {all_shapes}; give all of them the same "
                "samples: only the third number, of rows, may differ"
            )
        ends = np.cumsum(shapes[:, 2]).tolist()
        return cls(comm, (n, c, ends[-1], w), (0, *ends))


def row_bounds(height: int, size: int, image: str = "an image") -> tuple[int, ...]:
    """The cut of so many rows over `size` ranks: rank r has rows bounds[r] to bounds[r + 1] - 1.

    A loader that reads these rows only never holds a whole image. Other cuts work too: layers
    follow the rows that each rank brings, and cut their outputs so.
    """
    if height < size:
        raise ValueError(
            f"{image} of height {height} cannot be cut by rows over {size} ranks: cut it over "
            f"{height} or fewer, or put a SpatialFlatten, a SpatialMean or gather_rows before the "
            "layer that makes it so small"
        )
    return bounds(height, size)


def scatter_rows(x: Tensor, comm: Comm) -> Tensor:
    """This rank's rows of images (N, C, H, W) that every rank has whole: a view."""
    if x.ndim != 4:
        raise ValueError(f"scatter_rows: input of shape {x.shape}; it takes images (N, C, H, W)")
    return ops.scatter(x, comm, row_bounds(x.shape[2], comm.size), 2)


def gather_rows(x: Tensor, comm: Comm) -> Tensor:
    """The whole images, on every rank, of which each has some rows.

    What follows is computed by all ranks alike, so the gradient of the whole is that of one rank.
    """
    return ops.gather(x, comm, ImageRows.of("gather_rows", x, comm).bounds, 2)


class Strip(NamedTuple):
    """The rows start to stop - 1 of the image, to or from a rank."""

    rank: int
    start: int
    stop: int


class Halo(NamedTuple):
    """What this rank needs of an image, and what moves for that. Rows are those of the image.

    own       this rank's rows
    needed    the rows that its outputs depend on, padding included: from below 0, to above the last
    inside    those of them that are in the image
    """

    comm: Comm
    own: tuple[int, int]
    needed: tuple[int, int]
    inside: tuple[int, int]
    sends: tuple[Strip, ...]
    receives: tuple[Strip, ...]

    @classmethod
    def of(cls, name: str, rows: ImageRows, window: Window) -> Self:
        """The halo of outputs that are cut by `row_bounds`; `name` is the layer's, for messages."""
        comm, height, had = rows.comm, rows.shape[2], rows.bounds
        outputs = row_bounds(window.outputs(height), comm.size, f"{name}: the output")
        needed = [window.inputs(*outputs[r : r + 2]) for r in range(comm.size)]
        inside = [_within(span, 0, height) for span in needed]
        me, others = comm.rank, [r for r in range(comm.size) if r != comm.rank]
        own = ops.own(had, comm)
        sends = _not_empty(Strip(r, *_within(inside[r], *own)) for r in others)
        receives = _not_empty(Strip(r, *_within(inside[me], *had[r : r + 2])) for r in others)
        return cls(comm, own, needed[me], inside[me], sends, receives)

    @property
    def height(self) -> int:
        """The number of rows that are needed, padding included."""
        return self.needed[1] - self.needed[0]

    @property
    def is_local(self) -> bool:
        """Whether this rank has all rows that it needs, and no other needs one of them."""
        return not self.sends and not self.receives and self.inside == self.needed

    def fetch(self, x: Array, into: Array) -> None:
        """Fills `into` (N, rows needed, W, C) from x (N, h, W, C) of all ranks; not its padding."""
        first, (lo, hi) = self.needed[0], _within(self.own, *self.inside)
        works, arriving = self._start(x, self.own[0], self.sends, self.receives)
        if lo < hi:
            into[:, lo - first : hi - first] = x[:, lo - self.own[0] : hi - self.own[0]]
        _wait(works)
        for (_, start, stop), array in arriving:
            into[:, start - first : stop - first] = array

    def give_back(self, d: Array) -> Array:
        """The gradient of x from that of the rows needed, d (N, rows needed, W, C).

        It is the transpose of `fetch`: gradients of rows of others are sent there, and added in the
        order of ranks. The memory of d becomes that of the result where it can.
        """
        first, (lo, hi) = self.needed[0], self.own
        works, arriving = self._start(d, first, self.receives, self.sends)
        a, b = _within(self.own, *self.inside)
        if (a, b) == (lo, hi):
            dx = d[:, lo - first : hi - first]
        else:
            dx = backend.xp_of(d).zeros((d.shape[0], hi - lo, *d.shape[2:]), d.dtype)
            dx[:, a - lo : b - lo] = d[:, a - first : b - first]
        _wait(works)
        for (_, start, stop), array in arriving:
            dx[:, start - lo : stop - lo] += array
        return dx

    def _start(
        self, x: Array, first: int, sends: Sequence[Strip], receives: Sequence[Strip]
    ) -> tuple[list[Transfer], list[tuple[Strip, Array]]]:
        """Starts to send rows of x, whose first is row `first`, and to receive others.

        All are posted before any is waited for. Rows of a single image are sent from where they
        lie.
        """
        (n, _, *size), xp, wire = x.shape, backend.xp_of(x), wire_for(self.comm, x)
        arriving = [(p, xp.empty((n, p.stop - p.start, *size), x.dtype)) for p in receives]
        works = [wire.irecv(array, p.rank) for p, array in arriving]
        for p in sends:
            works.append(wire.isend(x[:, p.start - first : p.stop - first], p.rank))
        return works, arriving


def _within(span: tuple[int, int], start: int, stop: int) -> tuple[int, int]:
    """The part of a span of rows between start and stop; of no rows if there is none."""
    a = min(max(span[0], start), stop)
    return a, max(a, min(span[1], stop))


def _not_empty(strips: Iterable[Strip]) -> tuple[Strip, ...]:
    return tuple(strip for strip in strips if strip.start < strip.stop)


def _wait(works: Sequence[Transfer]) -> None:
    for work in works:
        work.wait()
