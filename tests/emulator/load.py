"""Puts the emulated driver under the real CuPy: `install()` before anything imports it.

CuPy finds the driver, cuBLAS and NCCL by their names, which libraries of the emulator have. The
runtime of CUDA is a part of CuPy's extension: each of its functions gets a jump to the emulator's.
"""

import ctypes
import hashlib
import importlib.util
import mmap
import os
import re
import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from emulator import build, machine


def missing() -> str:
    """The reason why CuPy cannot run here, or the empty string."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the emulator runs on Linux on x86-64"
    release = build.cuda_release()
    if not release:
        return "CuPy is not installed (pip install '.[cuda-test]')"
    if not build.compiler_of_kernels():
        return f"NVRTC of CUDA {release} is not installed (the wheel nvidia-cuda-nvrtc)"
    return build.missing()


@lru_cache(maxsize=1)
def install() -> None:
    """CuPy that is imported from now on runs on the emulated device."""
    if reason := missing():
        raise RuntimeError(f"the emulator cannot run: {reason}")
    if "cupy" in sys.modules:
        raise RuntimeError("the emulator comes too late: CuPy is imported already")
    os.environ["CUPY_COMPILE_WITH_PTX"] = "1"
    # not the headers of another CUDA in /usr/local
    os.environ["CUDA_PATH"] = str(Path(str(build.cuda_headers())).parent)
    os.environ.setdefault("CUPY_CACHE_DIR", str(build.CACHE / "cupy"))
    ctypes.CDLL(str(build.compiler_of_kernels()))  # CuPy takes one that is loaded, or of any CUDA
    driver = machine.library()
    folder = Path(importlib.util.find_spec("cupy_backends").origin).parent / "cuda"
    extensions = {path.name.partition(".")[0]: path for path in folder.glob("*/*.so")}
    for name in ("cublas", "nccl"):
        _stand_in(driver, extensions[name])
    _redirect(driver, extensions["runtime"])
    from emulator import cub

    cub.install(driver)
    _compile_once()


def _compile_once() -> None:
    """Lets one thread of one process compile a kernel, and the others read it from CuPy's cache
    then; each process keeps CuPy's headers precompiled."""
    from cupy.cuda import compiler

    read_or_compile, program = compiler._compile_with_cache_cuda, compiler._NVRTCProgram
    compile_program, folder = program.compile, TemporaryDirectory(prefix="nnmpi-emulator-")

    def locked(source: str, options: tuple[str, ...], *arguments: Any, **named: Any) -> Any:
        text = f"{options} {arguments} {named} {source}"
        with build.locked(hashlib.sha256(text.encode()).hexdigest()[:32]):
            return read_or_compile(source, options, *arguments, **named)

    def precompiled(self: Any, options: tuple[str, ...] = (), *arguments: Any) -> Any:
        known = compiler._get_nvrtc_version() >= (12, 8)
        more = ("--pch", f"--pch-dir={folder.name}") if known else ()
        return compile_program(self, (*options, *more), *arguments)

    compiler._compile_with_cache_cuda, program.compile = locked, precompiled


def _names(path: Path, kind: str, *options: str) -> dict[str, int]:
    """The functions of a library that nm lists as of this kind, and where they are."""
    run = subprocess.run(("nm", *options, str(path)), capture_output=True, text=True, check=True)
    rows = re.findall(rf"^([0-9a-f]*) +{kind} (\w+)(?:@.*)?$", run.stdout, re.M)
    return {name: int(at or "0", 16) for at, name in rows}


def _unknown(driver: ctypes.CDLL, names: list[str]) -> str:
    """C of functions that are not emulated: each returns an error, and says its name."""
    missing = [name for name in names if not hasattr(driver, name)]
    text = 'extern "C" int emulator_unknown(const char*);\n'
    return text + "".join(
        f'extern "C" int {n}() {{ return emulator_unknown("{n}"); }}\n' for n in missing
    )


def _stand_in(driver: ctypes.CDLL, extension: Path) -> None:
    """Loads libraries with the names that an extension needs, and its functions."""
    text = _unknown(driver, list(_names(extension, "U", "-D")))
    shown = subprocess.run(
        ("readelf", "-d", str(extension)), capture_output=True, text=True, check=True
    )
    for name in re.findall(r"NEEDED.*\[(lib(?:cublas|nccl)\.so\.\d+)\]", shown.stdout):
        others = [name.replace("cublas", "cublasLt")] if "cublas" in name else []
        for soname in (*others, name):
            # the driver's functions are found in it too, by those who open it by its name
            flags = ("-shared", f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", driver._name)
            ctypes.CDLL(str(build.compiled("", flags, source=text)), ctypes.RTLD_GLOBAL)


def _redirect(driver: ctypes.CDLL, extension: Path) -> None:
    """Overwrites the first bytes of the runtime's functions by a jump: mov rax, to; jmp rax."""
    functions = {n: at for n, at in _names(extension, "[tT]").items() if is_of_runtime(n)}
    text = _unknown(driver, sorted(functions))
    unknown = ctypes.CDLL(str(build.compiled("", ("-shared",), source=text)))
    ctypes.CDLL(str(extension))
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    base = min(int(line.partition("-")[0], 16) for line in lines if line.endswith(str(extension)))
    mprotect = ctypes.CDLL(None).mprotect
    for name, offset in functions.items():
        target = getattr(driver if hasattr(driver, name) else unknown, name)
        code = b"\x48\xb8" + struct.pack("<Q", _address(target)) + b"\xff\xe0"
        page = (base + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        if mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), everything):
            raise RuntimeError("the system does not let this process change its own code")
        ctypes.memmove(base + offset, code, len(code))


def is_of_runtime(name: str) -> bool:
    return bool(re.fullmatch(r"cuda[A-Z]\w+", name)) and not name.endswith(("_ptsz", "_ptds"))


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
