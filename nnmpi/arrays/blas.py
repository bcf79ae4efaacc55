"""NumPy's OpenBLAS: chooses its kernels, its number of threads, and how memory is allocated.

OpenBLAS chooses its kernels by the name of the processor, and chooses slow ones for some. `tune`
makes it choose again. One core, 1024^3 in float32 (`benchmarks/gemm.py` measures such rates):

    Zen 5 (AMD family 26)   Haswell kernels  128 GF/s   SkylakeX kernels  236 GF/s
    Zen 4 (AMD family 25)   Haswell kernels  109 GF/s   SkylakeX kernels  102 GF/s

The command `nnmpi.train` calls `tune` at its start; other programs may. NNMPI_TUNE=0 disables it.
OPENBLAS_CORETYPE, if set, determines the kernels instead.
"""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.arrays.cgroup import ROOT, cpu_quota, cpuset_size

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


def cpu(cpuinfo: str | None = None) -> dict[str, str]:
    """Returns the fields of the first processor in /proc/cpuinfo, or {}."""
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text(errors="replace") if path.exists() else ""
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def better_core(processor: Mapping[str, str]) -> str | None:
    """Returns the name of the OpenBLAS kernels to use on this processor, such as "SkylakeX", or
    None if OpenBLAS chooses well. `processor` has the fields of /proc/cpuinfo."""
    flags = {*processor.get("flags", "").split()}
    if processor.get("vendor_id") != "AuthenticAMD" or not flags >= _AVX512:
        return None
    # Zen 4 executes 512-bit instructions in two halves; the blocking of 256-bit kernels suits it.
    return "Haswell" if processor.get("cpu family") == "25" else "SkylakeX"


@lru_cache(maxsize=1)
def _openblas() -> ctypes.CDLL | None:
    """Loads the OpenBLAS of NumPy's wheel; None if NumPy uses another BLAS."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(folder.glob("libscipy_openblas*")):
        with suppress(OSError):
            return ctypes.CDLL(str(path))
    return None


def _function(name: str) -> Any | None:
    """Returns OpenBLAS's function `name`, such as "set_num_threads", or None. NumPy's wheels add a
    prefix and a suffix, but not to `gotoblas_dynamic_init` and `gotoblas_dynamic_quit`."""
    for full in (f"scipy_openblas_{name}64_", f"scipy_openblas_{name}", name):
        if hasattr(_openblas(), full):
            return getattr(_openblas(), full)
    return None


def core() -> str:
    """Returns the name of the OpenBLAS kernels in use, or "unknown"."""
    name = _function("get_corename")
    if name is None:
        return "unknown"
    name.restype = ctypes.c_char_p
    value: bytes = name()
    return value.decode()


def cores(ranks: int, root: Path = ROOT) -> int:
    """Returns the number of cores for each of `ranks` ranks on this node, at least 1.

    This is the smaller of an equal share of the cores that control groups (a container, a job) and
    the launcher's affinity leave to all ranks, and the cores that mpirun has bound this rank to:
    then its affinity differs from the launcher's.
    """
    machine = os.cpu_count() or 1
    allowed, launcher = affinity(0), affinity(os.getppid())
    limits = machine, cpuset_size(root), cpu_quota(root), len(launcher) or None
    share = int(min(limit for limit in limits if limit is not None) / ranks)
    return max(1, min(share, len(allowed) or machine))


def affinity(process: int) -> set[int]:
    """Returns the CPUs on which a process may run; empty if the system does not tell."""
    try:
        return os.sched_getaffinity(process)
    except (AttributeError, OSError):
        return set()


def set_by_user() -> str:
    """Returns the environment variable by which the user has set the number of threads, or ""."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    return next((name for name in names if os.environ.get(name)), "")


def threads_of_user() -> int:
    """Returns the number of threads that the user has set in the environment, else 1.

    OpenBLAS uses fewer if the rank is bound to fewer cores.
    """
    words = os.environ.get(set_by_user(), "").partition(",")[0].strip()
    return max(1, int(words)) if words.isdecimal() else 1


def default_threads(n: int) -> None:
    """Makes BLAS use n threads, unless the user has set the number in the environment."""
    if not set_by_user():
        set_threads(n)


def set_threads(n: int) -> None:
    """Makes BLAS use n threads, even if the user has set another number."""
    if function := _function("set_num_threads"):
        function(ctypes.c_int(n))


def threads() -> int:
    """Returns the number of threads that BLAS uses; 1 if it is unknown."""
    function = _function("get_num_threads")
    return int(function()) if function else 1


def tune() -> None:
    """Switches OpenBLAS to faster kernels and keeps freed memory in the process, where that helps.

    It changes the process: call it before computing, while no other thread uses BLAS. Kernels
    differ in the order of additions, so results change in their last bits.
    """
    setting = os.environ.get("NNMPI_TUNE", "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"NNMPI_TUNE is {setting!r}: set it to 0, 1 or not at all")
    if setting == "0":
        return
    _keep_memory()
    better = better_core(cpu())
    if better is not None and "OPENBLAS_CORETYPE" not in os.environ and core() != better:
        _switch_core(better)


def _switch_core(name: str) -> None:
    """Makes OpenBLAS choose kernels again, as if OPENBLAS_CORETYPE were `name`."""
    quit_, init = _function("gotoblas_dynamic_quit"), _function("gotoblas_dynamic_init")
    if quit_ is None or init is None or core() == "unknown":
        return
    os.environ["OPENBLAS_CORETYPE"] = name
    quit_()
    init()
    del os.environ["OPENBLAS_CORETYPE"]


def _keep_memory() -> None:
    """Makes malloc keep freed blocks, so that large temporaries cause page faults only once."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Older C libraries accept at most 32 MiB. If both sizes are refused, the other setting is not
    # made either: by itself it would fix the threshold at its small default.
    if any(mallopt(_M_MMAP_THRESHOLD, size) for size in (1 << 30, 1 << 25)):
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def release_memory() -> None:
    """Returns freed memory that malloc has kept to the system, as after set-up."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
