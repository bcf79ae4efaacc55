"""Every source in CUDA C compiles for GPUs, by nvrtc, which needs none."""

import ctypes
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from nnmpi.addons.cuda import launch

NAMES = sorted(path.stem for path in launch.FOLDER.glob("*.cu"))
KERNEL = re.compile(r"^KERNEL (\w+)\(", re.MULTILINE)
ARCHITECTURES = ("sm_80", "sm_90")


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler of nvidia-cuda-nvrtc-cu12, if that is installed."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [p for folder in folders for p in Path(folder).glob("*/lib/libnvrtc.so.*")]
    compilers = [p for p in paths if ".alt." not in p.name]
    return ctypes.CDLL(str(compilers[0])) if compilers else None


pytestmark = pytest.mark.skipif(
    nvrtc() is None, reason="nvrtc is not installed: pip install '.[cuda-test]'"
)


def output_of(name: str, architecture: str, kind: str, T: str = launch.FLOAT) -> bytes:
    """The PTX or CUBIN of a source, with the options that it is launched with."""
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
    what = kind if status == 0 else "ProgramLog"
    assert getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    found = ctypes.create_string_buffer(size.value)
    assert getattr(library, f"nvrtcGet{what}")(program, found) == 0
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, found.value.decode()
    return found.raw


@pytest.mark.one_in(3)
@pytest.mark.parametrize("T", launch.FLOATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name: str, architecture: str, T: str) -> None:
    cubin = output_of(name, architecture, "CUBIN", T)
    assert cubin.startswith(b"\x7fELF")
    for kernel in KERNEL.findall(launch.source(name)):
        assert b".text." + kernel.encode() + b"\0" in cubin
