"""Rows: an image (N, C, H, W) cut by rows over ranks, of which each has (N, C, h, W)."""

from typing import NamedTuple, Self

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.parallel.tensor import ops

GATHER = "halving"  # log2 p rounds: each rank contributes four numbers


class Rows(NamedTuple):
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

    @property
    def own(self) -> tuple[int, int]:
        """(first, last + 1) of this rank's rows."""
        return self.bounds[self.comm.rank], self.bounds[self.comm.rank + 1]


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
    return ops.gather(x, comm, Rows.of("gather_rows", x, comm).bounds, 2)
