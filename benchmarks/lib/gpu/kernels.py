"""The bandwidth of each kernel of nnmpi, on arrays that no cache holds."""

from functools import partial
from typing import Any

from lib.gpu.device import Cases, Device, Found

ROWS, WIDTH, CLASSES = 1 << 16, 1 << 10, 64
SIZES = {"N": ROWS * WIDTH, "M": ROWS, "K": WIDTH, "C": CLASSES, "1": 1, "2": 2, "8": 1 << 13}
"""The sides of arrays, by the letters of the table."""

ADAM = (None, None, 0.9, 0.99, 1e-3, 1e-8, 0.0, 1.0, 1.0)

KERNELS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "relu": (("MK", "MK"), ()),
    "relu_gradient": (("MK", "MK", "MK"), ()),
    "bias_relu": (("MK", "K", "K"), (0,)),
    "gelu": (("MK", "MK"), ()),
    "silu": (("MK", "MK"), ()),
    "softmax": (("MK", "MK", -1), ()),
    "softmax_gradient": (("MK", "MK", "MK", -1), ()),
    "layer_norm": (("MK", "K", "K", 1e-5, "f M", "f M", "MK"), ()),
    "layer_norm_gradient": (("MK", "MK", "K", "f M", "f M", "MK"), ()),
    "layer_norm_sums": (("MK", "MK", "f M", "f M", "f K", "f K"), ()),
    "rms_norm": (("MK", "K", 1e-5, "f M", "MK"), ()),
    "normalise": (("1MK", "f 1K", "f 1K", "K", "1MK"), ()),
    "moments": (("1MK", "f 1K", "f 1K"), (0,)),
    "norm_sums": (("1MK", "1MK", "f 1K", "f 1K", "f 1K"), ()),
    "norm_gradient": (("1MK", "1MK", *["f 1K"] * 4, "1MK"), ()),
    "column_sum": (("MK", "f K"), ()),
    "class_losses": (("MC", "i M", 1.0, "f M", "f 2M", "i M"), ()),
    "squares": (("N", 1.0, "f 8"), ()),
    "adam": (("f N", "N", "f N", "f N", *ADAM), (0, 2, 3)),
    "sgd": (("f N", "N", "f N", None, 0.1, 0.9, 0.0, 0.0, 0, 1.0), (0, 2)),
}
"""By name: arguments, and the places of arrays that are read and written, or read twice. A text is
the sides of an array, behind `f` in float32, behind `i` of integers, else in the case's dtype."""

DTYPES = "float32", "bfloat16"


def argument(cp: Any, given: Any, dtype: str) -> Any:
    from nnmpi.arrays.dtypes import named

    if not isinstance(given, str):
        return given
    kind, _, sides = given.rpartition(" ")
    numbers = {"f": "float32", "i": "int64"}.get(kind, dtype)
    return cp.ones([SIZES[side] for side in sides], named(numbers))


def bandwidth(on: Device, name: str, dtype: str) -> Found:
    import cupy

    from nnmpi.addons.cuda.table import KERNELS as LOOPS

    given, again = KERNELS[name]
    arguments = [argument(cupy, each, dtype) for each in given]
    launch = LOOPS.loops[f"{name}_loop"]
    if launch(*arguments) is NotImplemented:
        raise ValueError(f"the kernel {name} does not take these arguments: {given}")
    nbytes = [getattr(each, "nbytes", 0) for each in arguments]
    total = sum(nbytes) + sum(nbytes[place] for place in again)
    seconds = on.times(partial(launch, *arguments)).device
    return Found(total / seconds / 1e9, "GB/s", {"us": seconds * 1e6, "MB": total / 1e6})


def cases(on: Device) -> Cases:
    return {
        f"{name}, {dtype}": partial(bandwidth, on, name, dtype)
        for dtype in DTYPES
        for name in KERNELS
    }
