"""The matrix library under NumPy: which kernels it uses, and how memory is handed out.

NumPy's OpenBLAS chooses its kernels by a processor's name, and chooses badly
for some. Where this file knows better, it has them chosen again. One core,
1024^3 in float32 (`benchmarks/gemm.py` measures such rates):

    Zen 5 (AMD family 26)   Haswell kernels  128 GF/s   SkylakeX kernels  236 GF/s
    Zen 4 (AMD family 25)   Haswell kernels  109 GF/s   SkylakeX kernels  102 GF/s

Set NNMPI_TUNE=0 to leave everything as it is; OPENBLAS_CORETYPE, if set, wins.
"""

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


class Cpu(NamedTuple):
    """What /proc/cpuinfo says of the first processor."""

    vendor: str
    family: int
    name: str
    flags: frozenset[str]


def cpu(cpuinfo: str | None = None) -> Cpu:
    """The processor of this machine; all empty where there is no /proc/cpuinfo."""
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text(errors="replace") if path.exists() else ""
    fields: dict[str, str] = {}
    for line in cpuinfo.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    family = fields.get("cpu family", "0")
    return Cpu(
        fields.get("vendor_id", ""),
        int(family) if family.isdigit() else 0,
        fields.get("model name", ""),
        frozenset(fields.get("flags", "").split()),
    )


def better_core(c: Cpu) -> str | None:
    """The kernels to use on this processor, or None where OpenBLAS's own choice is fine."""
    if c.vendor != "AuthenticAMD" or not c.flags >= _AVX512:
        return None
    # Zen 4 runs 512-bit instructions in two halves: the 256-bit kernels block better for it.
    return "Haswell" if c.family == 25 else "SkylakeX"


@lru_cache(maxsize=1)
def _openblas() -> ctypes.CDLL | None:
    """The OpenBLAS that came in NumPy's wheel, or None if NumPy uses another."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(folder.glob("libscipy_openblas*")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


def _function(*names: str) -> Any | None:
    """The first of these functions that OpenBLAS has."""
    library = _openblas()
    for name in names:
        if library is not None and hasattr(library, name):
            return getattr(library, name)
    return None


def core() -> str:
    """The name of the kernels in use, "unknown" where there is no telling."""
    name = _function("scipy_openblas_get_corename64_", "scipy_openblas_get_corename")
    if name is None:
        return "unknown"
    name.restype = ctypes.c_char_p
    value: bytes = name()
    return value.decode()


def cores(ranks: int) -> int:
    """How many cores each of so many ranks here has: its share, or what it is bound to."""
    share = (os.cpu_count() or 1) // ranks
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else share
    return max(1, min(share, bound))


def default_threads(n: int) -> None:
    """Let BLAS use n threads, unless the user has said how many."""
    if not any(os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")):
        _set_threads(n)


def one_thread() -> None:
    """Let BLAS use one thread, whatever the user has said: with more, sums have another order."""
    _set_threads(1)


def _set_threads(n: int) -> None:
    function = _function("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads")
    if function is not None:
        function(ctypes.c_int(n))


def threads() -> int:
    """How many threads BLAS uses here; 1 where there is no telling."""
    function = _function("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads")
    return 1 if function is None else int(function())


def tune() -> None:
    """Choose the kernels and keep freed memory; harmless where it does not apply."""
    if os.environ.get("NNMPI_TUNE", "1") == "0":
        return
    _keep_memory()
    wanted = better_core(cpu())
    if wanted is not None and "OPENBLAS_CORETYPE" not in os.environ and core() != wanted:
        _switch_core(wanted)


def _switch_core(name: str) -> None:
    """Have OpenBLAS choose again, as if the user had asked for these kernels."""
    leave, enter = _function("gotoblas_dynamic_quit"), _function("gotoblas_dynamic_init")
    if leave is None or enter is None or core() == "unknown":
        return
    os.environ["OPENBLAS_CORETYPE"] = name
    leave()
    enter()
    del os.environ["OPENBLAS_CORETYPE"]


def _keep_memory() -> None:
    """Keep freed blocks in the process: else each large temporary costs its page faults anew."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Older C libraries take no more than 32 MiB. Where both sizes are refused, the other
    # setting stays away too: it alone would freeze the threshold at its small default.
    if any(mallopt(_M_MMAP_THRESHOLD, size) for size in (1 << 30, 1 << 25)):
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
