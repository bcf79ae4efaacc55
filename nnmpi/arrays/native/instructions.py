"""The instruction sets that kernels are compiled for, and which of them this processor has.

setup.py runs this file by itself, before there is a package.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

NEEDS: Mapping[str, tuple[str, ...]] = {
    "amx": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512BF16", "AMXBF16", "FMA3"),
    "avx512bf16": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512BF16", "FMA3"),
    "avx512": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "FMA3"),
    "avx2": ("AVX2", "FMA3", "F16C"),
    "baseline": (),
}
"""The instruction sets, the best one first, and the processor features that each needs."""


def _of_system() -> dict[str, bool]:
    """Returns which features this processor has that NumPy 2.1 does not detect."""
    path = Path("/proc/cpuinfo")
    flags = {*path.read_text(errors="replace").split()} if path.exists() else {""}
    return {"AVX512BF16": "avx512_bf16" in flags, "AMXBF16": "amx_bf16" in flags}


def available() -> list[str]:
    """Returns the instruction sets that this processor has, the best one first."""
    umath: Any = import_module("numpy._core._multiarray_umath")
    features: Mapping[str, bool] = {**_of_system(), **umath.__cpu_features__}
    return [name for name in NEEDS if all(features.get(feature) for feature in NEEDS[name])]
