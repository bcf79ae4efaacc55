"""Kernels that are compiled for a GPU before there is one: a folder of CUBINs.

    make   each kernel that CuPy compiles, for whatever device, is compiled for an H200 too
    use    on such a GPU, kernels of the folder are not compiled

CuPy's own cache fits one environment: its names contain the folders of headers and the release of
the compiler. Names here are made of the source, of the other options, and of CuPy's version.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ARCHITECTURE = "90"
OPTIONS = ("-ftz=true", "--device-as-default-execution-space", f"-arch=sm_{ARCHITECTURE}")
"""What CuPy adds to the options of its caller."""

Compile = Callable[..., Any]


def name_of(source: str, options: Sequence[str], names: Sequence[str] | None) -> str:
    """The name of a kernel's file; `names` are those of templates that the source is asked for."""
    import cupy

    kept = [option for option in options if not option.startswith("-I")]
    text = json.dumps([cupy.__version__, ARCHITECTURE, kept, sorted(names or ()), source])
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"


def make(folder: Path) -> None:
    """Compiles, from now on, into the folder."""
    from cupy.cuda import compiler

    folder.mkdir(parents=True, exist_ok=True)

    def save(path: Path, source: str, options: Sequence[str], names: Sequence[str]) -> Any:
        if not path.exists():
            program = compiler._NVRTCProgram(source, name_expressions=names, method="cubin")
            cubin, mapping = program.compile((*options, *OPTIONS))
            if names:
                mangled = [mapping[name] for name in sorted(names)]
                cubin = compiler._encode_cache_payload(mangled, cubin)
            path.write_bytes(cubin)
        return None

    _patch(folder, save)


def use(folder: Path) -> None:
    """Loads, from now on, what the folder has, if the device is one for which it was made."""
    from cupy.cuda import compiler, function

    if compiler._get_arch() != ARCHITECTURE:
        return

    def load(path: Path, source: str, options: Sequence[str], names: Sequence[str]) -> Any:
        if not path.exists():
            return None
        module, payload = function.Module(), path.read_bytes()
        if names:
            mangled, payload = compiler._decode_cache_payload(payload, len(names))
            module._set_mapping(dict(zip(sorted(names), mangled, strict=True)))
        module.load(payload)
        return module

    _patch(folder, load)


def _patch(folder: Path, first: Compile) -> None:
    """CuPy compiles what `first` gives no module for."""
    from cupy.cuda import compiler

    plain = compiler._compile_with_cache_cuda

    def compiled(
        source: str,
        options: tuple[str, ...],
        arch: str | None,
        extra: str | None = None,
        backend: str = "nvrtc",
        cooperative: bool = False,
        names: Sequence[str] | None = None,
        *others: Any,
    ) -> Any:
        module = None
        if backend == "nvrtc" and not any(others):
            module = first(folder / name_of(source, options, names), source, options, names)
        if module is not None:
            return module
        return plain(source, options, arch, extra, backend, cooperative, names, *others)

    compiler._compile_with_cache_cuda = compiled
