"""Refuses, before the first step, batches whose parts have one sample where a layer needs more.

BatchNorm1d takes one number a channel from each sample, and one number has no variance. An image
may have several numbers a channel; where it has one, BatchNorm2d itself refuses it.
"""

from collections.abc import Sequence

import numpy as np

from nnmpi.data import Loader
from nnmpi.data.loader import BatchCut, BatchSplit
from nnmpi.nn import Module
from nnmpi.nn.layers.norm import over_rows
from nnmpi.parallel.strategy import AgreedError


class OneSampleError(AgreedError, ValueError):
    """Some part of a batch has one sample."""


def check_parts(
    model: Module, loader: Loader, batches: float, cuts: Sequence[BatchCut], into: str, remedy: str
) -> None:
    """Raises OneSampleError, on all ranks alike, if a part of the first `batches` has one sample.

    `cuts` are those of all ranks; `cut_into` describes them, `remedy` is what to do instead.
    """
    layers = over_rows(model)
    if not layers:
        return
    for n in _sizes(loader, batches):
        if any(len(part) == 1 for cut in cuts for part in cut(np.arange(n))):
            how = f" is cut into {into}, and one of these parts has 1; use {remedy}"
            raise OneSampleError(
                f"{layers[0]} needs more than one sample: of {len(loader.split.y)} in batches of "
                f"{loader.batch_size}, a batch of {n}"
                + (how if n > 1 else " is left; use another --batch-size")
            )


def check_micro_batches(model: Module, loader: Loader, batches: float, parts: int) -> None:
    """Checks batches whose micro-batches, so many `parts` of each, have statistics of all ranks."""
    check_parts(
        model,
        loader,
        batches,
        [BatchSplit(parts, 1, 0)],
        f"{parts} micro-batches",
        "fewer --micro-batches or another --batch-size",
    )


def _sizes(loader: Loader, batches: float) -> list[int]:
    """The sizes of the first `batches` batches of an epoch: whole ones, and the last one."""
    samples, size = len(loader.split.y), loader.batch_size
    whole, rest = divmod(samples, size)
    sizes = [size] * min(whole, 1)
    return [*sizes, rest] if rest and batches > whole else sizes
