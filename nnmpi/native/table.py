"""The table of kernels: each inner loop by its name, in NumPy and, where it was built, compiled.

    @kernel                 an entry of KERNELS: the function, which NumPy computes on any backend,
    def adam(p, g, ...)     and nnmpi.native's of that name, for the arrays that it is made for

Callers do not know which of the two computes.
"""

from collections.abc import Callable
from typing import Any

from nnmpi import native


class Kernel:
    """A loop over arrays that writes into some of them."""

    __slots__ = ("compiled", "reference")

    def __init__(self, reference: Callable[..., None], compiled: Callable[..., Any] | None) -> None:
        self.reference, self.compiled = reference, compiled

    def __call__(self, *args: Any) -> None:
        if self.compiled is None or self.compiled(*args) is NotImplemented:
            self.reference(*args)


KERNELS: dict[str, Kernel] = {}


def kernel(reference: Callable[..., None]) -> Kernel:
    """Enters a loop into the table."""
    name = reference.__name__
    KERNELS[name] = found = Kernel(reference, native.kernel(name))
    return found
