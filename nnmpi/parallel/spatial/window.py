"""Window: which rows of an image the rows of a convolution's or pooling's output depend on."""

from typing import NamedTuple

from nnmpi.kernels.im2col import output_size


class Window(NamedTuple):
    """Output row i depends on the input rows i * stride - padding + (0 .. kernel - 1)."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def outputs(self, height: int) -> int:
        """The number of output rows of an image of this height."""
        return output_size(height, self.kernel, self.stride, self.padding)

    def inputs(self, start: int, stop: int) -> tuple[int, int]:
        """(first, last + 1) of the rows that output rows start to stop - 1 depend on.

        Rows below 0, and those behind the image, are padding.
        """
        first = start * self.stride - self.padding
        return first, first + (stop - start - 1) * self.stride + self.kernel

    def pooled(self) -> "Window":
        """This window and a 2x2 max-pool behind it as one: two outputs are one."""
        return Window(self.kernel + self.stride, 2 * self.stride, self.padding)
