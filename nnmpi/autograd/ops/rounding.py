"""Ops that round, and the sign: their values are constant between jumps, and their gradients 0."""

from collections.abc import Callable

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import in_layout


def _step(name: str) -> Callable[[Array], Result]:
    """Returns the op for NumPy's sign, or for a rounding function such as floor; rounding copies
    integers unchanged, and the sign booleans."""

    def op(a: Array) -> Result:
        is_whole = a.dtype.kind in ("b" if name == "sign" else "biu")
        y = a.copy("K") if is_whole else in_layout(getattr(xp_of(a), name), a)
        return Result(y, (lambda g, out: xp_of(g).zeros_like(g),))

    op.__name__, op.__doc__ = name, f"{name} of each element; the gradient is 0."
    return op


sign, floor, ceil = _step("sign"), _step("floor"), _step("ceil")
trunc, rint = _step("trunc"), _step("rint")
