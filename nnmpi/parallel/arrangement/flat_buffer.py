"""What plans and stores both know of flat buffers: the scalars in front, and what a node keeps of
an update that may have to be finished by others (`stores/journal.py`).

Scalars that are summed together with the gradients cost no message:

    flat_grad   [ loss | request | used 0 | used 1 | ... | gradients ... ]

`used i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnmpi.arrays.kernels.undo import NOTE_BYTES

LOSS, REQUEST, USED = 0, 1, 2
"""Where the scalars are."""

STOPS, SAVES = 1.0, 2.0**-12
"""What a rank may request: to end the run after the step, or a checkpoint of it.

Requests are summed: from STOPS on, some rank wants to end the run. The first rank alone requests
checkpoints; with --reproducible it does so once a slice, of which it has fewer than STOPS / SAVES.
"""

Stretch = tuple[int, int]
"""(start, stop) in a flat buffer, across parameters: a `Range` is of one tensor."""


def scalar_count(parameters: Sequence[object]) -> int:
    """How many scalars there are: the loss, the request, and one number a parameter."""
    return USED + len(parameters)


DECIDED = 4
"""The numbers of a decision: loss, stop, whether something is not finite, squares. Behind them are
uses of what is tied, which the memory of a node never is."""

BLOCK_BYTES = 1 << 17
"""The most of one array that an update keeps at a time: as NumPy changes it."""

HEAD, LINE = 2, 8  # numbers of 8 bytes: in front of a decision, and in a cache line


def undo_length(sums: int, dtype: np.dtype[Any]) -> int:
    """The numbers of an update's note, and of a block of values and of so many running sums."""
    return (NOTE_BYTES + (1 + sums) * BLOCK_BYTES) // dtype.itemsize


def record_length(decided: int, parameters: int) -> int:
    """The numbers of 8 bytes that note a decision and which parameters are used, in whole lines."""
    return -(-(HEAD + decided + parameters) // LINE) * LINE
