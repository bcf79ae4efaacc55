"""Window: which inputs along one axis the outputs of a convolution or a pooling read."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Size = int | Sequence[int]
"""One number for both axes, or one for each: (rows, columns)."""


Pair = tuple[int, int]


class Window(NamedTuple):
    """Output i reads the inputs i * stride - before + dilation * (0 .. kernel - 1).

    Inputs below 0 and behind the last are padding: `before` and `after` of them. If `after` is
    negative, so many inputs at the end are not read.
    """

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """From the first input that an output reads to the one behind the last."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, size: int) -> int:
        """The number of outputs of so many inputs."""
        return (size + self.before + self.after - self.span) // self.stride + 1

    def padded(self, size: int) -> int:
        """The number of inputs with their padding."""
        return size + self.before + max(self.after, 0)

    def inputs(self, start: int, stop: int) -> tuple[int, int]:
        """(first, last + 1) of the inputs that outputs start to stop - 1 read, padding included."""
        first = start * self.stride - self.before
        return first, first + (stop - start - 1) * self.stride + self.span

    def pooled(self) -> "Window":
        """This window and a 2x2 max-pool behind it as one: two outputs are one."""
        return Window(self.span + self.stride, 2 * self.stride, self.before, self.after)

    def ceiled(self, size: int) -> "Window":
        """With as much more padding as the last output needs, where it begins before that."""
        outputs = -(-(size + self.before + self.after - self.span) // self.stride) + 1
        if (outputs - 1) * self.stride >= size + self.before:
            outputs -= 1
        needed = (outputs - 1) * self.stride + self.span - size - self.before
        return self._replace(after=max(self.after, needed))


Windows = tuple[Window, Window]
"""The windows along the rows and along the columns of an image."""


def windows(kernel: Size, stride: Size, padding: Size | str = 0, dilation: Size = 1) -> Windows:
    """The windows of a kernel; `padding` is "same", "valid", or so much on both sides.

    "same" gives as many outputs as inputs; of an odd number, one more is behind the last input.
    """
    given = padding if isinstance(padding, str) else pair(padding)
    return _windows(pair(kernel), pair(stride), given, pair(dilation))


@lru_cache(maxsize=256)
def _windows(kernel: Pair, stride: Pair, padding: Pair | str, dilation: Pair) -> Windows:
    pair_of_windows = []
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        window = Window(k, s, dilation=d)
        if padding == "same":
            before, after = (window.span - 1) // 2, window.span // 2
        else:
            before = after = 0 if isinstance(padding, str) else padding[axis]
        pair_of_windows.append(window._replace(before=before, after=after))
    return pair_of_windows[0], pair_of_windows[1]


def pair(size: Size) -> Pair:
    """(rows, columns) of one number or two."""
    if isinstance(size, Sequence):
        rows, columns = size
        return rows, columns
    return size, size
