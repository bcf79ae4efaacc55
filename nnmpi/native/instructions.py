"""The sets of instructions of compiled kernels, and those that this processor has.

setup.py runs this file by itself, before there is a package.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

NEEDS: Mapping[str, tuple[str, ...]] = {
    "avx512bf16": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512BF16", "FMA3"),
    "avx512": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "FMA3"),
    "avx2": ("AVX2", "FMA3", "F16C"),
    "baseline": (),
}
"""The sets of instructions, the best one first, and the features of a processor that has it."""


def _has_bf16() -> bool:
    """By the system, since NumPy 2.1 does not ask for this feature."""
    path = Path("/proc/cpuinfo")
    return path.exists() and "avx512_bf16" in path.read_text(errors="replace").split()


def available() -> list[str]:
    """The sets that this processor has, the best one first."""
    umath: Any = import_module("numpy._core._multiarray_umath")
    features: Mapping[str, bool] = {"AVX512BF16": _has_bf16(), **umath.__cpu_features__}
    return [name for name in NEEDS if all(features.get(feature) for feature in NEEDS[name])]
