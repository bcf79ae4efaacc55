"""The front of flat buffers, which plans and stores both know: scalars before the gradients.

Scalars that are summed together with the gradients cost no message:

    flat_grad   [ loss | request | used 0 | used 1 | ... | gradients ... ]

`used i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Sequence

LOSS, REQUEST, USED = 0, 1, 2
"""Where the scalars are."""

STOPS, SAVES = 1.0, 2.0**-12
"""Requests of a rank: to end the run after the step, or a checkpoint of it.

Requests are summed: from STOPS on, some rank wants to end the run. The first rank alone requests
checkpoints; with --reproducible it does so once a slice, of which it has fewer than STOPS / SAVES.
"""

FlatSlice = tuple[int, int]
"""(start, stop) in a flat buffer, across parameters: a `Range` is of one tensor."""


def scalar_count(parameters: Sequence[object]) -> int:
    """How many scalars there are: the loss, the request, and one number a parameter."""
    return USED + len(parameters)
