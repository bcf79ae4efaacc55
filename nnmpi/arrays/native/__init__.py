"""Compiled kernels, if they were built, for the instruction set that this processor has.

    kernel("adam_loop")    the function of that name, or None: then NumPy computes
    INSTRUCTIONS           amx, avx512bf16, avx512, avx2, baseline, or none
    missing()              what to do if there are none
    cost_of_halves(dtype)  how much longer a step in 16 bits takes

NNMPI_NATIVE=0 disables them; NNMPI_NATIVE=avx2 takes those of a smaller instruction set. The import
accepts any value, since an error there would be a traceback of imports; training refuses a wrong
one (`check`).

Rules:

- A C function takes the arguments of the NumPy function that it replaces. For arguments that it is
  not made for (dtypes, shapes, strides, empty or read-only arrays, overlapping outputs) it returns
  NotImplemented and has written nothing. Only `arguments.c` parses arguments, by the line of types
  above each kernel's C code (`native.h`): kernels see no Python objects.
- A kernel uses at most 16 KB of stack: the stack of a thread may be short.
- Elementwise loops give NumPy's bits: a product and a sum are never contracted to an FMA.
  Transforms, sums and functions such as exp differ from NumPy's by rounding, and are the same with
  every instruction set: sums have a fixed number of SIMD lanes (`lanes.h`), functions are
  polynomials (`elementary.h`), with errors of at most 2.6 ulp for tanh, 2.5 for sigmoid, 3.3 for
  SiLU and 7 for GELU (`tests/kernels/test_elementary.py`); denormal results have an error below
  1e-7.
- Each source is compiled once for each instruction set. A wheel has all of them,
  or with NNMPI_BUILD=native the best one of this processor. Without a compiler the installation
  succeeds, and NumPy computes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from nnmpi.arrays.native.instructions import NEEDS, available


def setting_error() -> str:
    """Returns what is wrong with the value of NNMPI_NATIVE, or ""."""
    if (value := os.environ.get("NNMPI_NATIVE", "")) in ("", "0", "1", *NEEDS):
        return ""
    return f"NNMPI_NATIVE is {value!r}: set it to 0, 1 or one of {', '.join(NEEDS)}, or not at all"


def check() -> None:
    """Raises ValueError if NNMPI_NATIVE has a value that is not allowed."""
    if setting_error():
        raise ValueError(setting_error())


def modules(wanted: str = "") -> Iterator[tuple[str, ModuleType]]:
    """Yields the compiled modules that this processor can run, as (instruction set, module), best
    first. `wanted`, a value of NNMPI_NATIVE, may name the best one to use; "0" yields none."""
    names, has = [*NEEDS], available()
    best = names.index(wanted) if wanted in names else 0
    for name in names[best:] if wanted != "0" else ():
        if name in has:
            try:
                yield name, import_module(f"nnmpi.arrays.native._{name}")
            except ImportError:  # not built, or refused by the system
                continue


INSTRUCTIONS, _module = next(modules(os.environ.get("NNMPI_NATIVE", "")), ("none", None))


def kernel(name: str) -> Callable[..., Any] | None:
    """Returns the compiled kernel with this name, or None."""
    return getattr(_module, name, None)


def missing() -> str:
    """Returns where compiled kernels are missing and what to do, or ""."""
    setting = os.environ.get("NNMPI_NATIVE")
    if _module is not None or setting == "0":
        return ""
    folder = Path(__file__).parent
    built = ", ".join(sorted(path.name for path in folder.glob("_*.so")))
    reason = f"not built in {folder}" if not built else f"{built} of {folder} do not run here"
    if setting in NEEDS:
        reason = f"none in {folder} for NNMPI_NATIVE={setting}"
    speed = "NumPy is used instead, at about half the speed"
    return f"compiled kernels: {reason}; {speed}: {remedy(folder)}"


def remedy(folder: Path) -> str:
    """Returns how to get the compiled kernels of a checkout or of a wheel."""
    has_compiler = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
    project = folder.parents[2]
    if (project / "setup.py").exists():
        first = "" if has_compiler else "install a C compiler, such as gcc; then "
        return (
            f"{first}build them with pip install -e {project}; or, if an nnmpi that has them is "
            "installed, start Python outside the checkout"
        )
    return (
        f"install a wheel of nnmpi with kernels for this processor ({' or '.join(available())}), "
        "or pip install a checkout of nnmpi, where a C compiler builds them"
    )


COST_OF_HALVES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "baseline": {"bfloat16": (1.2, 1.8), "float16": (1.5, 2.7)},
    "none": {"bfloat16": (1.3, 2.0), "float16": (2.0, 3.6)},
}
"""By instruction set and dtype: (from, to) of a 16-bit step over float32, above 1."""


def cost_of_halves(dtype: str) -> str:
    """Returns how much longer a 16-bit step takes on the host, or ""."""
    if dtype not in (costs := COST_OF_HALVES.get(INSTRUCTIONS, {})):
        return ""
    by = "NumPy" if INSTRUCTIONS == "none" else "kernels without AVX2"
    least, most = costs[dtype]
    return (
        f"{dtype} with {by}: a step takes {least:g} to {most:g} times as long as in float32; use "
        "--dtype float32, or compiled kernels on a processor with AVX2"
    )
