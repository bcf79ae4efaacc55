"""Memory at its peak, as it grows with the length of a sequence."""

import tracemalloc
from collections.abc import Callable


def grows_linearly(run: Callable[[int], object], heads: int) -> None:
    """Asserts that a pass over so many positions takes memory in proportion to them.

    At 4,096 positions it is far below that of the scores of all pairs, in float32.
    """

    def peak(T: int) -> int:
        tracemalloc.start()
        try:
            run(T)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    most = peak(4096)
    assert most < 4 * heads * 4096**2 / 8
    assert most < 4.5 * peak(1024)
