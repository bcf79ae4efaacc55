"""The compiled kernels: one extension module for each set of instructions, from the same sources.

They are optional: where there is no compiler, the installation succeeds and NumPy computes. All
metadata is in setup.cfg, where extension modules cannot be named. NNMPI_BUILD=avx2, say, builds
one set alone.
"""

import os
import platform
from glob import glob

from setuptools import Extension, setup

EXACT = ["-std=c11", "-O3", "-ffp-contract=off", "-g0", "-fno-math-errno", "-fno-trapping-math"]
"""Numbers as NumPy computes them: no product and sum is rounded once instead of twice."""

ONE_PATH = ["-fno-thread-jumps"]
"""Else GCC computes all of what follows a limit, as of e^x, twice: below the limit and above it."""

X86 = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}
SETS: dict[str, list[str]] = {
    "baseline": [],  # of arm64: NEON
    **(X86 if platform.machine() in ("x86_64", "AMD64") else {}),
}


def extensions() -> list[Extension]:
    try:
        import numpy
    except ImportError:
        return []
    sources = sorted(glob("nnmpi/native/*.c"))
    return [
        Extension(
            f"nnmpi.native._{name}",
            sources,
            include_dirs=[numpy.get_include()],
            define_macros=[("MODULE", f"_{name}")],
            extra_compile_args=[*EXACT, *ONE_PATH, *flags],
            depends=sorted(glob("nnmpi/native/*.h")),
            optional=True,
        )
        for name, flags in SETS.items()
        if os.environ.get("NNMPI_BUILD", name) == name
    ]


setup(ext_modules=extensions())
