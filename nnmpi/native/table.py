"""The table of kernels: each inner loop by its name, in NumPy, compiled, and in CUDA.

    @kernel                 an entry of KERNELS: the function, which computes on any backend,
    def adam(p, g, ...)     nnmpi.native's of that name for NumPy's arrays, where it was built,
                            and nnmpi.cuda's for CuPy's, if there is one

Callers do not know which of them computes.
"""

from collections.abc import Callable
from typing import Any

from nnmpi import cuda, native


class Kernel:
    """A loop over arrays that writes into some of them."""

    __slots__ = ("compiled", "cuda", "reference")

    def __init__(
        self,
        reference: Callable[..., None],
        compiled: Callable[..., Any] | None,
        cuda: Callable[..., Any] | None,
    ) -> None:
        self.reference, self.compiled, self.cuda = reference, compiled, cuda

    def __call__(self, *args: Any) -> None:
        # compiled first, whatever the arrays are: on the host a microsecond counts
        if self.compiled is not None and self.compiled(*args) is not NotImplemented:
            return
        if self.cuda is None or self.cuda(*args) is NotImplemented:
            self.reference(*args)


KERNELS: dict[str, Kernel] = {}


def kernel(reference: Callable[..., None]) -> Kernel:
    """Enters a loop into the table."""
    name = reference.__name__
    KERNELS[name] = found = Kernel(reference, native.kernel(name), cuda.kernel(name))
    return found
