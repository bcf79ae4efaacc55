"""The sources in CUDA C, compiled by nvrtc, which needs no GPU."""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from nnmpi.addons.cuda import launch


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler of nvidia-cuda-nvrtc-cu12, if that is installed."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [p for folder in folders for p in Path(folder).glob("*/lib/libnvrtc.so.*")]
    compilers = [p for p in paths if ".alt." not in p.name]
    return ctypes.CDLL(str(compilers[0])) if compilers else None


needs_nvrtc = pytest.mark.skipif(
    nvrtc() is None, reason="nvrtc is not installed: pip install '.[cuda-test]'"
)


def cubin_of(name: str, architecture: str, T: str = launch.FLOAT) -> bytes:
    """The CUBIN of a source, with the options that it is launched with."""
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    assert library is not None
    text = launch.source(name, T, T).encode()
    options = [f"--gpu-architecture={architecture}".encode(), *map(str.encode, launch.OPTIONS)]
    options.append(b"-ftz=true")  # as CuPy compiles, behind the options it is given
    made = library.nvrtcCreateProgram(ctypes.byref(program), text, b"k.cu", 0, None, None)
    assert made == 0
    status = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    what = "CUBIN" if status == 0 else "ProgramLog"
    assert getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    found = ctypes.create_string_buffer(size.value)
    assert getattr(library, f"nvrtcGet{what}")(program, found) == 0
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, found.value.decode()
    return found.raw
