"""The choice of BLAS kernels and threads, correct results afterwards, and the opt-outs."""

import os
import subprocess
import sys

import pytest

from nnmpi.arrays import blas

AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"


def cpuinfo(vendor: str, family: int, flags: str) -> str:
    """Two processors as Linux lists them; only the first one counts."""
    first = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\n"
        f"model name\t: Some: Processor\nflags\t\t: fpu sse avx2 {flags} fma\nbugs\t\t:\n\n"
    )
    return first + first.replace(vendor, "Other")


PROCESSORS = {
    "Zen 5": (cpuinfo("AuthenticAMD", 26, AVX512), "SkylakeX"),
    "Zen 4": (cpuinfo("AuthenticAMD", 25, AVX512), "Haswell"),
    "Zen 3": (cpuinfo("AuthenticAMD", 25, ""), None),
    "AMD with half of AVX-512": (cpuinfo("AuthenticAMD", 26, "avx512f avx512cd"), None),
    "Intel": (cpuinfo("GenuineIntel", 6, AVX512), None),
    "ARM": ("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n", None),
    "a family that is no number": (
        cpuinfo("AuthenticAMD", 26, AVX512).replace(": 26", ": ?"),
        "SkylakeX",
    ),
    "empty": ("", None),
    "blank": ("\n\n", None),
    "nonsense": ("::\nno colon here\n", None),
}


@pytest.mark.parametrize(("text", "core"), PROCESSORS.values(), ids=PROCESSORS)
def test_better_core(text, core):
    assert blas.better_core(blas.cpu(text)) == core


# ---- the real BLAS, in separate processes

COMPUTE = """
import os
import numpy as np

# SkylakeX's sgemv converts lanes of its stack that it does not use: a signalling NaN there warns
@np.errstate(invalid="ignore")
def compute():
    rng = np.random.default_rng(0)
    for dtype, eps in (("float32", 1e-4), ("float64", 1e-11)):
        for n, k, m in ((1, 1, 1), (3, 5, 7), (64, 64, 64), (129, 257, 65), (200, 30, 300)):
            a, b = (rng.integers(-4, 5, s).astype(dtype) for s in ((n, k), (k, m)))
            exact = np.einsum("ik,kj->ij", a.astype("int64"), b.astype("int64"))
            assert (a @ b == exact).all(), (dtype, n, k, m)
            assert (a.T.copy().T @ b == exact).all()
            assert (a @ b[:, 0] == exact[:, 0]).all()
        a = (rng.standard_normal((40, 40)) + 10 * np.eye(40)).astype(dtype)
        assert abs(np.linalg.inv(a) @ a - np.eye(40)).max() < eps
        u, s, v = np.linalg.svd(a)
        assert abs(u * s @ v - a).max() < 100 * eps
        assert abs(u.T @ u - np.eye(40)).max() < eps
"""


def python(code: str, **environment: str) -> list[str]:
    """The lines printed by a new Python process that runs this code."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NNMPI_TUNE", "OPENBLAS_CORETYPE")}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPUTE + code],
        env={"OPENBLAS_NUM_THREADS": "1", **kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split("\n")[:-1]


SWITCH = """
compute()
from nnmpi import blas
compute()
for name in ("Nehalem", "Haswell"):
    blas._switch_core(name)
    compute()
    print(blas.core())
    assert "OPENBLAS_CORETYPE" not in os.environ
"""


def switches_here() -> bool:
    """Whether NumPy's BLAS is an OpenBLAS for x86 with several kinds of kernels."""
    functions = blas._function("gotoblas_dynamic_quit"), blas._function("gotoblas_dynamic_init")
    return None not in functions and "avx2" in blas.cpu()["flags"]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_results_are_right_after_the_switch(threads):
    names = python(SWITCH, OPENBLAS_NUM_THREADS=threads)
    if switches_here():
        assert names == ["Nehalem", "Haswell"]
    else:
        assert len(set(names)) == 1


TUNED = """
from nnmpi import blas
blas.tune()
compute()
print(blas.core())
print(blas.better_core(blas.cpu()))
print(os.environ.get("OPENBLAS_CORETYPE", "unset"))
"""


IMPORT = """
import ctypes
import signal
import sys
import threading

def state():
    handlers = [signal.getsignal(s) for s in signal.valid_signals()]
    return dict(os.environ), handlers, sys.excepthook, threading.excepthook, sys.exit

class Refused:
    def __init__(self, *names):
        raise AssertionError(f"{names} was opened")

before, sum_before = state(), (np.ones((65, 65), "f4") / 3 @ np.ones((65, 65), "f4")).tobytes()
real, ctypes.CDLL = ctypes.CDLL, Refused
import nnmpi
ctypes.CDLL = real
assert state() == before
assert (np.ones((65, 65), "f4") / 3 @ np.ones((65, 65), "f4")).tobytes() == sum_before
print(nnmpi.arrays.blas.core())
"""


def test_importing_nnmpi_changes_nothing_in_the_process():
    """No library is opened to set allocation or kernels, beside BLAS threads or not."""
    (core,) = python(IMPORT, OPENBLAS_NUM_THREADS="2")
    assert core == python("from nnmpi import blas\nprint(blas.core())", NNMPI_TUNE="0")[0]


def test_tune_switches_to_the_better_core():
    core, better, setting = python(TUNED)
    assert setting == "unset"
    if switches_here() and better != "None":
        assert core == better
    else:
        assert core == python(TUNED, NNMPI_TUNE="0")[0]


def test_openblas_coretype_is_respected():
    core, _, setting = python(TUNED, OPENBLAS_CORETYPE="Nehalem")
    assert setting == "Nehalem"
    if switches_here():
        assert core == "Nehalem"


def test_thread_counts_set_by_the_user_are_respected(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(blas, "_function", lambda *names: lambda n: asked.append(n.value))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    blas.default_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    blas.default_threads(1)
    assert asked == [1]
