"""The C++ of the emulator and of kernels, compiled once and kept in a cache.

A file of the cache is named by a digest of its source, its flags and the compiler.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

SOURCES = Path(__file__).parent / "cxx"
FLAGS = ("-std=c++20", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off")
CACHE = Path(os.environ.get("NNMPI_EMULATOR_CACHE", Path.home() / ".cache" / "nnmpi-emulator"))


WHEELS = {"12": "cuda_runtime/include", "13": "cu13/include"}
"""The headers of each CUDA, in the wheel of its runtime."""


def cuda_release() -> str:
    """The CUDA that the installed CuPy is built for, "12" or "13", or the empty string.

    Its extension names the library that it needs, whether or not CuPy came as a wheel.
    """
    cupy = importlib.util.find_spec("cupy_backends")
    if cupy is None or cupy.origin is None:  # nothing, or a folder of this name
        return ""
    extensions = Path(cupy.origin).parent.glob("cuda/libs/cublas.*.so")
    needed = (re.search(rb"libcublas\.so\.(1[23])\b", path.read_bytes()) for path in extensions)
    return next((library[1].decode() for library in needed if library), "")


def of_nvidia(pattern: str) -> Path | None:
    """The first such file of NVIDIA's wheels, which may lie in several folders of sys.path."""
    paths = (path for folder in sys.path for path in Path(folder, "nvidia").glob(pattern))
    return next(paths, None)


def compiler_of_kernels() -> Path | None:
    """NVRTC of the CUDA that CuPy is built for."""
    return of_nvidia(f"*/lib/libnvrtc.so.{cuda_release()}")


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers."""
    header = of_nvidia(f"{WHEELS[cuda_release() or '12']}/cuda_runtime_api.h")
    return header.parent if header else None


UNITS = (
    ("memory", "nccl", "grid"),
    ("cub", "cublas", "driver", "graphs", "null", "orders", "streams"),
)
"""Files of the driver that are compiled together: what takes longest are the headers of each."""


def emulator_library() -> Path:
    """The library that stands for the driver, cuBLAS and NCCL."""
    files = (*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), SOURCES / "crt" / "host_defines.h")
    known = "".join(path.read_text(encoding="utf-8") for path in sorted(files))
    include = (f"-I{SOURCES}", f"-I{cuda_headers()}", "-O2", "-fvisibility=hidden", "-c")

    def compiled_object(names: Sequence[str]) -> str:
        text = "".join(f'#include "{name}.cpp"\n' for name in names)
        return str(compiled(known, include, ".o", text))

    with ThreadPoolExecutor() as pool:
        objects = [*pool.map(compiled_object, UNITS)]
    return compiled("", ("-shared", *objects, "-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread"))


def kernel_library(source: str) -> Path:
    """The library of a translated module, which finds libm and libgcc where the driver has them."""
    headers = (SOURCES / name for name in ("numbers.h", "device.h"))
    known = "".join(path.read_text(encoding="utf-8") for path in headers)
    flags = ("-shared", "-O1", "-w", "-nostdlib", f"-I{SOURCES}")
    return compiled(known, flags, source=source)


def compiled(known: str, flags: Sequence[str], suffix: str = ".so", source: str = "") -> Path:
    """What g++ makes of a source, or of the files that its flags name; `known` is what it reads."""
    of_any_folder = (flag.replace(str(SOURCES), "") for flag in flags)  # as `known` has the files
    text = "\n".join((compiler_version(), *FLAGS, *of_any_folder, known, source))
    path = CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{suffix}"
    if path.exists():
        return path
    with locked(path.stem):
        if not path.exists():
            _compile(path, flags, source)
    return path


@contextmanager
def locked(name: str) -> Iterator[None]:
    """A context that one thread of one process at a time is in: others wait, and find what it has
    made in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(path: Path, flags: Sequence[str], source: str) -> None:
    part = path.with_suffix(".part")
    inputs = ("-x", "c++", "-") if source else ()
    command = ("g++", *FLAGS, *flags, *inputs, "-o", str(part))
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"g++ does not compile {path.name}: {run.stderr[:2000]}")
    part.rename(path)


@lru_cache(maxsize=1)
def compiler_version() -> str:
    return subprocess.run(("g++", "--version"), capture_output=True, text=True, check=True).stdout


def missing() -> str:
    """The reason why nothing can be built, or the empty string."""
    if shutil.which("g++") is None:
        return "no g++"
    return "" if cuda_headers() else "no headers of CUDA (the wheel nvidia-cuda-runtime)"
