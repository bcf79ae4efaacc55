"""What calls of CUDA cost, and the peaks of the device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lib.gpu.device import Cases, Device, Found

Made = Callable[[Any], Callable[[], object]]
"""Makes what is called, given CuPy."""

EMPTY = 'extern "C" __global__ void empty() {}'
SMALL, LARGE, SIDE = 1 << 10, 1 << 29, 8192
PINNED = 1 << 26


def kernel(cp: Any) -> Callable[[], object]:
    return partial(cp.RawModule(code=EMPTY).get_function("empty"), (1,), (32,), ())


def kernel_of_nnmpi(cp: Any) -> Callable[[], object]:
    from nnmpi.addons.cuda.table import KERNELS

    return partial(KERNELS.loops["relu_loop"], *(cp.ones(SMALL, "float32") for _ in range(2)))


def kernel_of_cupy(cp: Any) -> Callable[[], object]:
    x = cp.ones(SMALL, "float32")
    return partial(cp.add, x, x, out=cp.empty_like(x))


def graph(nodes: int) -> Made:
    def make(cp: Any) -> Callable[[], object]:
        launch, stream = kernel(cp), cp.cuda.Stream(non_blocking=True)
        launch()  # modules are loaded outside captures
        with stream:
            stream.begin_capture(cp.cuda.runtime.streamCaptureModeRelaxed)
            for _ in range(nodes):
                launch()
            captured = stream.end_capture()
        launch_graph: Callable[[], object] = captured.launch
        return launch_graph

    return make


def product(dtype: str, side: int, tf32: bool = False) -> Made:
    """A product of matrices of rank one, whose numbers differ: zeros would take less power."""

    def make(cp: Any) -> Callable[[], object]:
        from nnmpi.addons.cuda.table import KERNELS
        from nnmpi.addons.cuda.tf32 import allow_tf32
        from nnmpi.arrays import backend
        from nnmpi.arrays.dtypes import named

        allow_tf32(backend.get("cuda"), tf32)
        rng = np.random.default_rng(0)
        numbers = [cp.asarray(rng.standard_normal(side, "float32")) for _ in range(2)]
        a = (numbers[0][:, None] * numbers[1]).astype(named(dtype))
        return partial(KERNELS.loops["products_loop"], a, a, cp.empty_like(a), False)

    return make


def to_device(pinned: bool, nbytes: int) -> Made:
    def make(cp: Any) -> Callable[[], object]:
        import cupyx

        x = (cupyx.empty_pinned if pinned else np.empty)(nbytes, "uint8")
        return partial(cp.empty(nbytes, "uint8").set, x)

    return make


def to_host(cp: Any) -> Callable[[], object]:
    return cp.ones(1, "float32").get


def on_device(cp: Any) -> Callable[[], object]:
    return partial(cp.copyto, *(cp.ones(LARGE, "uint8") for _ in range(2)))


COSTS: dict[str, Made] = {
    "launch of an empty kernel": kernel,
    "launch of a kernel of nnmpi": kernel_of_nnmpi,
    "launch of a kernel of CuPy": kernel_of_cupy,
    "launch of a graph of 1 kernel": graph(1),
    "launch of a graph of 100 kernels": graph(100),
    "launch of a graph of 1,000 kernels": graph(1000),
    "GEMM call, 64 x 64": product("float32", 64),
    "copy of 4 KB to the device": to_device(False, 4096),
    "copy of 4 KB to the device, pinned": to_device(True, 4096),
    "copy of 4 bytes to the host": to_host,
    "wait for an idle device": lambda cp: cp.cuda.Device().synchronize,
    "record of an event": lambda cp: cp.cuda.Event().record,
    "1 MB from CuPy's pool": lambda cp: partial(cp.empty, 1 << 20, "uint8"),
}

OPERATIONS = 2 * SIDE**3
PEAKS: dict[str, tuple[Made, float, str]] = {
    "copy on the device": (on_device, 2 * LARGE / 1e9, "GB/s"),
    "copy to the device, pinned": (to_device(True, PINNED), PINNED / 1e9, "GB/s"),
    "product, float32": (product("float32", SIDE), OPERATIONS / 1e12, "TFLOP/s"),
    "product, float32, TF32": (product("float32", SIDE, tf32=True), OPERATIONS / 1e12, "TFLOP/s"),
    "product, bfloat16": (product("bfloat16", SIDE), OPERATIONS / 1e12, "TFLOP/s"),
    "product, float16": (product("float16", SIDE), OPERATIONS / 1e12, "TFLOP/s"),
}
"""What is called, how much of the unit one call does, and the unit, which is of a second."""


def cost(on: Device, make: Made) -> Found:
    import cupy

    times = on.times(make(cupy))
    return Found(times.host * 1e6, "us of the host", {"us of the device": times.device * 1e6})


def rate(on: Device, make: Made, amount: float, unit: str) -> Found:
    import cupy

    seconds = on.times(make(cupy)).device
    return Found(amount / seconds, unit, {"ms": seconds * 1e3})


def cases(on: Device) -> Cases:
    costs: Cases = {name: partial(cost, on, make) for name, make in COSTS.items()}
    return costs | {name: partial(rate, on, *row) for name, row in PEAKS.items()}
