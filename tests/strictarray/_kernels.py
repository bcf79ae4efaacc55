"""RawModule of the stand-in: kernels in CUDA C, compiled for the host by its C compiler.

It is stricter than CuPy, which passes on whatever it is given: the types of arguments have to be
those of the kernel, and arrays have to be contiguous.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from strictarray._counting import launched
from strictarray._values import Held
from strictarray.cuda import kernels

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FLAGS = ("-std=gnu11", "-O1", "-shared", "-fPIC", "-w")
ON_HOST = Path(__file__).with_name("cuda_on_host.h")
KERNEL = re.compile(r"^KERNEL (\w+)\(([^)]*)\)", re.MULTILINE)
NAMED = re.compile(r"^#define (T|G) (\w+)$", re.MULTILINE)
CHUNK = re.compile(r"\n(?=KERNEL |DEVICE |#define )")
TYPES = {
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "unsigned": "uint32",
    "long long": "int64",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""NumPy's names of types; others have the same in both."""
OPTIONS = {"--fmad=false": "-ffp-contract=off", "--fmad=true": "-ffp-contract=fast"}


class RawModule:
    """Kernels of one source; `options` are those of nvrtc that OPTIONS has."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        self.code, self.options = code, options

    def get_function(self, name: str) -> "RawKernel":
        found, named = dict(KERNEL.findall(self.code)), dict(NAMED.findall(self.code))
        return RawKernel(self, name, [_named(t, named) for t in parameters(found[name])])

    @cached_property
    def library(self) -> ctypes.PyDLL:
        return compiled(self.code, tuple(OPTIONS[option] for option in self.options))


class RawKernel:
    """A kernel: kernel(grid, block, args)."""

    def __init__(self, module: RawModule, name: str, types: list[str]) -> None:
        self.module, self.name, self.types = module, name, types

    def __call__(self, grid: tuple[int], block: tuple[int], args: Sequence[Any]) -> None:
        if len(args) != len(self.types):
            raise TypeError(f"{self.name} takes {len(self.types)} arguments, not {len(args)}")
        values = [passed(t, a) for t, a in zip(self.types, args, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        kernels.count += 1
        launched("kernel", self.name)
        run = getattr(self.module.library, f"run_{self.name}")
        if run(ctypes.c_uint(int(*grid)), ctypes.c_uint(int(*block)), pointers):
            raise RuntimeError(f"{self.name}: a barrier was not met by all threads of a block")


def parameters(text: str) -> list[str]:
    """The types of parameters, without const, as in 'float *' and 'unsigned'."""
    names = [" ".join(part.replace("*", " * ").split()) for part in text.split(",")]
    return [re.sub(r"\s*\w+$", "", name).removeprefix("const ") for name in names]


def _named(kind: str, named: dict[str, str]) -> str:
    """A type with T and G as the source defines them."""
    name = kind.removesuffix(" *")
    return kind.replace(name, named.get(name, name))


def passed(kind: str, value: Any) -> np.ndarray:
    """What is at the address of an argument: a number, or the address of an array."""
    name = kind.removesuffix(" *")
    plain = TYPES.get(name, name)
    if not kind.endswith("*"):
        if not isinstance(value, np.generic) or value.dtype != plain:
            raise TypeError(f"{kind} was given {value!r}: write np.{plain}(...)")
        return np.array(value)
    if isinstance(value, np.uintp):  # NULL, or the address of a view with gaps
        return np.array(value)
    if not isinstance(value, Held) or value._a.dtype.name != plain:
        raise TypeError(f"{kind} was given {type(value)}, {getattr(value, 'dtype', value)!r}")
    if not value._a.flags.forc:
        raise TypeError(f"{kind} was given an array with gaps: strides {value._a.strides}")
    return np.array(value._a.ctypes.data, np.uintp)


def kernels_with_barriers(code: str) -> set[str]:
    """The kernels that share memory, themselves or by a macro."""
    chunks, sharing = CHUNK.split(code), {"__shared__"}

    def named(kind: str) -> set[str]:
        shares = re.compile(rf"\b({'|'.join(sharing)})\b")
        found = (re.match(kind + r" (\w+)", chunk) for chunk in chunks if shares.search(chunk))
        return {match[1] for match in found if match}

    sharing |= named("#define")
    return named("KERNEL")


@lru_cache(maxsize=256)
def compiled(code: str, flags: tuple[str, ...]) -> ctypes.PyDLL:
    """The library of a source, which is loaded; it holds the GIL, since it has global variables."""
    with_barriers = kernels_with_barriers(code)
    text = [ON_HOST.read_text(encoding="utf-8"), code]
    for name, list_of in KERNEL.findall(code):
        barriers = int(name in with_barriers)
        args = ", ".join(f"*({kind} *)a[{i}]" for i, kind in enumerate(parameters(list_of)))
        text.append(f"static void call_{name}(void *const *a) {{ {name}({args}); }}")
        text.append(
            f"int run_{name}(unsigned blocks, unsigned count, void *const *a) "
            f"{{ return launch(call_{name}, blocks, count, a, {barriers}); }}"
        )
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text("\n".join(text), encoding="utf-8")
        subprocess.run([COMPILER, *FLAGS, *flags, source, "-o", library, "-lm"], check=True)
        return ctypes.PyDLL(str(library))
