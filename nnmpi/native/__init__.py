"""Compiled kernels, where they were built: those for the instructions that this processor has.

    kernel("adam_loop")    the function of that name, or None: NumPy then computes
    INSTRUCTIONS           avx512, avx2, baseline, or none

NNMPI_NATIVE=0 leaves them out; NNMPI_NATIVE=avx2, say, takes those for fewer instructions. The
import takes any value, where an error would be a traceback of imports; training refuses a wrong one
(`check`).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

NEEDS: Mapping[str, tuple[str, ...]] = {
    "avx512": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "FMA3"),
    "avx2": ("AVX2", "FMA3"),
    "baseline": (),
}
"""The sets of instructions, the best one first, and the features of a processor that has it."""


def check() -> None:
    """Raises ValueError if NNMPI_NATIVE is neither a switch nor a set of instructions."""
    if (wanted := os.environ.get("NNMPI_NATIVE", "")) not in ("", "0", "1", *NEEDS):
        raise ValueError(
            f"NNMPI_NATIVE is {wanted!r}: set it to 0, 1 or one of {', '.join(NEEDS)}, "
            "or not at all"
        )


def modules(wanted: str = "") -> Iterator[tuple[str, ModuleType]]:
    """The modules that are there and that this processor can run, the best one first."""
    names = [*NEEDS]
    umath: Any = import_module("numpy._core._multiarray_umath")
    features: Mapping[str, bool] = umath.__cpu_features__
    best = names.index(wanted) if wanted in names else 0
    for name in names[best:] if wanted != "0" else ():
        if all(features.get(feature) for feature in NEEDS[name]):
            try:
                yield name, import_module(f"nnmpi.native._{name}")
            except ImportError:  # it was not built
                continue


INSTRUCTIONS, _module = next(modules(os.environ.get("NNMPI_NATIVE", "")), ("none", None))


def kernel(name: str) -> Callable[..., Any] | None:
    """The compiled kernel of this name, if there is one."""
    return getattr(_module, name, None)
