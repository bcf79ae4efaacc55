"""EmbeddingBag: sums, means or maxima of the rows of a table."""

import math
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.functions.gathering import index_add
from nnmpi.autograd import Tensor, apply, as_tensor, on_host
from nnmpi.autograd.creation import zeros
from nnmpi.autograd.functional import tensor, where
from nnmpi.autograd.ops import lookup
from nnmpi.nn.layers.basic import Embedding, check_choice

MODES = "sum", "mean", "max"


class EmbeddingBag(Embedding):
    """The sum, mean or maximum of the rows of a table (num_embeddings, embedding_dim) in each bag
    of integers.

    Bags are the rows of an input (N, L); or they lie one behind the other in an input (L,), and
    `offsets` says where each begins. An empty bag gives zeros. Row `padding_idx` is in no bag.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> None:
        check_choice("EmbeddingBag", "mode", mode, MODES)
        others = max_norm, norm_type, scale_grad_by_freq, sparse
        super().__init__(num_embeddings, embedding_dim, padding_idx, *others)
        self.mode, self.include_last_offset = mode, bool(include_last_offset)

    def forward(self, index: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """Returns one vector per bag, (bags, embedding_dim), for integers `index` of shape (N, L),
        or (L,) with `offsets`, which are read on the host. `per_sample_weights`, for mode "sum",
        are factors of the rows, in the shape of the integers."""
        if per_sample_weights is not None and self.mode != "sum":
            raise ValueError(
                f"EmbeddingBag: per_sample_weights are for mode='sum', not {self.mode!r}"
            )
        numbers = on_host(index)
        bags, count = self._bags(numbers.shape, offsets)
        kept = np.flatnonzero(numbers != self.padding_idx)  # all, if it is None
        bags = bags[kept]
        rows = apply(lookup.embedding, self.weight, index=self.checked(numbers.reshape(-1)[kept]))
        if per_sample_weights is not None:
            rows = rows * as_tensor(per_sample_weights).reshape(-1)[kept].unsqueeze(1)
        sizes = np.bincount(bags, minlength=count)
        if self.mode == "max":
            return _largest(rows, bags, sizes)
        total = zeros(count, self.embedding_dim, dtype=rows.dtype, device=rows.device)
        sums = index_add(total, 0, tensor(bags, device=rows.device), rows)
        if self.mode == "sum":
            return sums
        means: Tensor = sums / tensor(
            np.maximum(sizes, 1)[:, None].astype(rows.dtype), on=rows.device
        )
        return means

    def _bags(self, shape: tuple[int, ...], offsets: Any) -> tuple[np.ndarray, int]:
        """Returns (the number of the bag that each integer of the input is in, the number of bags),
        for an input of this shape. Raises ValueError if the offsets do not fit the shape."""
        if (len(shape), offsets is None) not in ((2, True), (1, False)):
            given = "without" if offsets is None else "with"
            raise ValueError(
                f"EmbeddingBag: input of shape {shape} {given} offsets: give (N, L), or (L,) with "
                "offsets"
            )
        if offsets is None:
            return np.repeat(np.arange(shape[0]), shape[1]), shape[0]
        starts = on_host(offsets)
        ends = starts[1:] if self.include_last_offset else np.append(starts[1:], shape[0])
        sizes = ends - starts[: len(ends)]
        if starts.ndim != 1 or starts.dtype.kind not in "iu" or starts[:1].any():
            raise ValueError(
                f"EmbeddingBag: offsets {starts.tolist()!s:.60}: give integers that begin with 0"
            )
        if (sizes < 0).any() or sizes.sum() != shape[0]:
            raise ValueError(
                f"EmbeddingBag: offsets {starts.tolist()!s:.60} for {shape[0]} integers: they must "
                "rise, and end within these"
            )
        return np.repeat(np.arange(len(sizes)), sizes), len(sizes)


def _largest(rows: Tensor, bags: np.ndarray, sizes: np.ndarray) -> Tensor:
    """Returns, for each bag, the largest element of each column of its rows, and zeros for an empty
    bag. `bags` has the bag of each row, `sizes` the number of rows of each bag."""
    first = np.cumsum(sizes) - sizes
    place = np.arange(max(sizes.max(initial=0), 1))
    inside = place < sizes[:, None]
    if not len(bags):
        return zeros(len(sizes), rows.shape[1], dtype=rows.dtype, device=rows.device)
    padded = rows[np.where(inside, first[:, None] + place, 0)]  # (bags, largest size, channels)
    mask = tensor(inside[:, :, None], device=rows.device)
    largest = where(mask, padded, -math.inf).max(1).values
    return where(tensor(sizes[:, None] > 0, device=rows.device), largest, 0)
