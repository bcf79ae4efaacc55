"""Window: the inputs that each output of a convolution or a pooling reads, along one axis."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Size = int | Sequence[int]
"""A size for both axes, or one for each: (rows, columns)."""


Pair = tuple[int, int]


class Window(NamedTuple):
    """The inputs that each output of a convolution or a pooling reads, along one axis.

    Output i reads the inputs i * stride - before + dilation * (0 .. kernel - 1). Inputs before the
    first and after the last are padding: `before` and `after` of them. If `after` is negative, that
    many inputs at the end are not read.
    """

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """The number of inputs from the first to the last that an output reads, including gaps."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, size: int) -> int:
        """Returns the number of outputs for `size` inputs."""
        return (size + self.before + self.after - self.span) // self.stride + 1

    def padded(self, size: int) -> int:
        """Returns the number of inputs with their padding."""
        return size + self.before + max(self.after, 0)

    def inputs(self, start: int, stop: int) -> tuple[int, int]:
        """Returns (first, last + 1) of the inputs of outputs start..stop-1, padded."""
        first = start * self.stride - self.before
        return first, first + (stop - start - 1) * self.stride + self.span

    def pooled(self) -> "Window":
        """Returns the window of a convolution that is followed by a 2x2 max-pool: the inputs that
        two neighbouring outputs read together, with twice the stride."""
        return Window(self.span + self.stride, 2 * self.stride, self.before, self.after)

    def ceiled(self, size: int) -> "Window":
        """Returns this window with the padding that `ceil_mode` adds after the last input: the last
        output may read padding, but must begin in the inputs or in the padding before them."""
        outputs = -(-(size + self.before + self.after - self.span) // self.stride) + 1
        # as in PyTorch, no window begins in the padding after the inputs
        if (outputs - 1) * self.stride >= size + self.before:
            outputs -= 1
        needed = (outputs - 1) * self.stride + self.span - size - self.before
        return self._replace(after=max(self.after, needed))


Windows = tuple[Window, Window]
"""The windows along the rows and along the columns of an image."""


def windows(kernel: Size, stride: Size, padding: Size | str = 0, dilation: Size = 1) -> Windows:
    """Makes the windows of a kernel; `padding` is "same", "valid", or the padding on both sides.

    "same" gives as many outputs as inputs at stride 1; of an odd padding one more is at the end.
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
    """Returns (rows, columns) from one number or two."""
    if isinstance(size, Sequence):
        rows, columns = size
        return rows, columns
    return size, size
