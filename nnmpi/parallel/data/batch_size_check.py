"""A share of one sample has no variance: refused before the first step, not in the middle of a run.

Only layers that take one number a channel from each sample, as BatchNorm1d does, are known to need
more than one. Of images there may be several; where it is one, the layer itself refuses it.
"""

from collections.abc import Sequence

import numpy as np

from nnmpi.data import Loader
from nnmpi.data.loader import Cut
from nnmpi.nn import Module
from nnmpi.nn.norm import over_rows
from nnmpi.parallel.data.batch_split import Shares
from nnmpi.parallel.strategy import AgreedError


class LonelyError(AgreedError, ValueError):
    """Some share of a batch has one sample."""


def check_shares(
    model: Module, loader: Loader, batches: float, cuts: Sequence[Cut], cut_into: str, remedy: str
) -> None:
    """Refuses, on all ranks alike, if in so many batches some share of the model has one sample.

    `cuts` are those of all ranks; what they are is in `cut_into`, what to do instead in `remedy`.
    """
    layers = over_rows(model)
    if not layers:
        return
    for n in _sizes(loader, batches):
        if any(len(part) == 1 for cut in cuts for part in cut(np.arange(n))):
            how = f" is cut into {cut_into}, and one of these parts has 1; use {remedy}"
            raise LonelyError(
                f"{layers[0]} needs more than one sample: of {len(loader.split.y)} in batches of "
                f"{loader.batch_size}, a batch of {n}"
                + (how if n > 1 else " is left; use another --batch-size")
            )


def check_micro_batches(model: Module, loader: Loader, batches: float, parts: int) -> None:
    """The same where ranks see a whole micro-batch together, of so many parts of a batch."""
    check_shares(
        model,
        loader,
        batches,
        [Shares(parts, 1, 0)],
        f"{parts} micro-batches",
        "fewer --micro-batches or another --batch-size",
    )


def _sizes(loader: Loader, batches: float) -> list[int]:
    """Of the batches of an epoch, if so many are made: whole ones, and the last one."""
    samples, size = len(loader.split.y), loader.batch_size
    whole, rest = divmod(samples, size)
    sizes = [size] * min(whole, 1)
    return [*sizes, rest] if rest and batches > whole else sizes
