"""The scalars in front of the gradients in a flat buffer, such as the loss, which are summed over
ranks together with the gradients:

    flat_grad   [ loss | request | used 0 | used 1 | ... | gradients ... ]

So they cost no message of their own. `request` is above 0 if a rank asks to stop or to save; `used
i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Sequence

LOSS, REQUEST, USED = 0, 1, 2
"""The indices of the scalars: the loss, the request, and the first of the `used` counters."""

STOPS, SAVES = 1.0, 2.0**-12
"""Values of a request: to end the run after this step, or to write a checkpoint of it.

Requests are summed, so a sum of at least STOPS means that some rank wants to end the run. Only rank
0 requests checkpoints; with --reproducible it adds SAVES once a slice, and has fewer than STOPS /
SAVES slices.
"""

FlatSlice = tuple[int, int]
"""(start, stop) of a flat buffer, over several parameters; a `Range` is within one."""


def scalar_count(parameters: Sequence[object]) -> int:
    """Returns how many scalars precede gradients: loss, request, one per parameter."""
    return USED + len(parameters)
