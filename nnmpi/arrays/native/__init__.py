"""Compiled kernels, where they were built: those for the instructions that this processor has.

    kernel("adam_loop")    the function of that name, or None: NumPy then computes
    INSTRUCTIONS           amx, avx512bf16, avx512, avx2, baseline, or none
    missing()                 what to do if they are missing
    cost_of_halves(dtype)  how much longer a step in 16 bits takes

NNMPI_NATIVE=0 leaves them out; NNMPI_NATIVE=avx2, say, takes those for fewer instructions. The
import takes any value, where an error would be a traceback of imports; training refuses a wrong one
(`check`).

Rules:

- A C function takes the arguments of its NumPy twin. For arguments that it is not made for (types,
  shapes, strides, empty or read-only arrays, overlapping outputs) it returns NotImplemented and has
  written nothing. `arguments.c` alone takes arguments apart, by the line of types beside each
  kernel (`native.h`): kernels see no Python objects.
- A kernel uses at most 16 KB of stack: the stack of a thread may be short.
- Loops over numbers give NumPy's bits: no product and sum are contracted. Transforms, sums and
  functions such as exp differ from NumPy's by rounding, and are the same on every set of
  instructions: sums have a fixed number of lanes (`lanes.h`), functions are polynomials
  (`elementary.h`), with errors of at most 2.6 ulp for tanh, 2.5 for sigmoid, 3.3 for SiLU and 7
  for GELU (`tests/kernels/test_elementary.py`); denormal results have an error below 1e-7.
- Each source is compiled once for each set of instructions. A wheel has all sets;
  NNMPI_BUILD=native builds the best set of this processor. Without a compiler the installation
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
    """The error if NNMPI_NATIVE is neither a switch nor a set of instructions; else empty."""
    if (wanted := os.environ.get("NNMPI_NATIVE", "")) in ("", "0", "1", *NEEDS):
        return ""
    return f"NNMPI_NATIVE is {wanted!r}: set it to 0, 1 or one of {', '.join(NEEDS)}, or not at all"


def check() -> None:
    """Raises ValueError if NNMPI_NATIVE is wrong."""
    if setting_error():
        raise ValueError(setting_error())


def modules(wanted: str = "") -> Iterator[tuple[str, ModuleType]]:
    """The modules that are there and that this processor can run, the best one first."""
    names, has = [*NEEDS], available()
    best = names.index(wanted) if wanted in names else 0
    for name in names[best:] if wanted != "0" else ():
        if name in has:
            try:
                yield name, import_module(f"nnmpi.arrays.native._{name}")
            except ImportError:  # it was not built, or the system refuses it
                continue


INSTRUCTIONS, _module = next(modules(os.environ.get("NNMPI_NATIVE", "")), ("none", None))


def kernel(name: str) -> Callable[..., Any] | None:
    """The compiled kernel of this name, if there is one."""
    return getattr(_module, name, None)


def missing() -> str:
    """Where compiled kernels are missing and what to do; empty if they, or nobody, is wanted."""
    wanted = os.environ.get("NNMPI_NATIVE")
    if _module is not None or wanted == "0":
        return ""
    folder = Path(__file__).parent
    others = ", ".join(sorted(path.name for path in folder.glob("_*.so")))
    reason = f"not built in {folder}" if not others else f"{others} of {folder} do not run here"
    if wanted in NEEDS:
        reason = f"none in {folder} for NNMPI_NATIVE={wanted}"
    remedy = "install nnmpi again"
    if (folder / "module.c").exists():  # the sources
        remedy = (
            f"pip install -e {folder.parents[1]} builds them, and an installed nnmpi has its own, "
            "if Python starts in another folder"
        )
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        remedy = f"install a C compiler, such as gcc; then {remedy}"
    return f"compiled kernels: {reason}, so NumPy computes, at about half the speed: {remedy}"


COST_OF_HALVES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "baseline": {"bfloat16": (1.2, 1.8), "float16": (1.5, 2.7)},
    "none": {"bfloat16": (1.3, 2.0), "float16": (2.0, 3.6)},
}
"""The time of a step in 16 bits over that of float32, where it takes longer: from, to."""


def cost_of_halves(dtype: str) -> str:
    """How much longer a step in this type takes on the host; empty if it does not."""
    if dtype not in (costs := COST_OF_HALVES.get(INSTRUCTIONS, {})):
        return ""
    by = "NumPy" if INSTRUCTIONS == "none" else "kernels without AVX2"
    least, most = costs[dtype]
    return (
        f"{dtype} by {by}: a step takes {least:g} to {most:g} times as long as in float32: "
        "--dtype float32, or compiled kernels on a processor with AVX2, are faster"
    )
