"""The emulated driver: loaded into this process, its options, and what it has found."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from emulator import build, ptx
from emulator.ptx import UnknownPtxError
from emulator.translate import translate

ORDERS = ("eager", "late", "random")


class Options(NamedTuple):
    """How the device behaves; NNMPI_EMULATOR="order=late seed=3" sets them too."""

    order: str = "eager"  # of streams: as issued, as late as synchronisation allows, at random
    shuffled: bool = False  # threads and blocks in a random order
    races: bool = False  # found in shared and in global memory: slow
    devices: int = 1
    patience: float = 60.0  # seconds until a wait is a deadlock
    seed: int = 0
    null: bool = False  # calls are noted, and nothing runs; for a whole process


def of_environment() -> Options:
    """The options of NNMPI_EMULATOR."""
    given = dict(part.split("=") for part in os.environ.get("NNMPI_EMULATOR", "").split())
    kinds = {"order": str, "patience": float}
    return Options(**{k: kinds.get(k, int)(v) for k, v in given.items()})


@lru_cache(maxsize=1)
def is_null() -> bool:
    """True if calls are noted, and nothing runs: modules that are loaded then have no code."""
    return bool(of_environment().null)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The driver, whose names all libraries of this process find."""
    if reason := build.missing():
        raise RuntimeError(f"the emulator cannot be built: {reason}")
    driver = ctypes.CDLL(str(build.emulator_library()), ctypes.RTLD_GLOBAL)
    driver.emulator_problems.restype = ctypes.c_char_p
    driver.emulator_notes.restype = ctypes.c_char_p
    driver.emulator_set_translator(_table if is_null() else _translate)
    set_options(of_environment(), driver)
    return driver


def set_options(options: Options, driver: ctypes.CDLL | None = None) -> None:
    if options.null != is_null():
        raise ValueError('the null device is chosen before the start, by NNMPI_EMULATOR="null=1"')
    order = ORDERS.index(options.order)
    numbers = (order, options.shuffled, options.races, options.devices, options.null)
    patience, seed = ctypes.c_double(options.patience), ctypes.c_uint64(options.seed)
    (driver or library()).emulator_set(*numbers, patience, seed)


def problems() -> list[str]:
    """What went wrong since the last call; the device goes on after it."""
    return library().emulator_problems().decode().splitlines()


def remaining_problems() -> list[str]:
    """Those that are left when all work is done, if the device was used at all."""
    if not library.cache_info().currsize:
        return []
    library().cudaDeviceSynchronize()
    return problems()


def notes(*, goes_on: bool = True) -> list[tuple[str, str]]:
    """Launches, copies and waits since the last call, which also starts or ends the notes."""
    lines = library().emulator_notes(goes_on).decode().splitlines()
    return [(kind, name) for kind, _, name in (line.partition("\t") for line in lines)]


@contextmanager
def noting() -> Iterator[list[tuple[str, str]]]:
    """The notes of what is called within, by every thread; they can be read after it."""
    found: list[tuple[str, str]] = []
    notes()
    try:
        yield found
    finally:
        found += notes(goes_on=False)


def waits(calls: list[tuple[str, str]]) -> int:
    """How often threads wait for a device; a wait behind a wait of the same thread is not noted."""
    return sum(kind == "wait" for kind, _ in calls)


def _translator(translated: Callable[[str], str]) -> Any:
    """What cuModuleLoadData calls: it gets PTX, and memory for a text that is made of it."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char), ctypes.c_int)
    def called(text: bytes, memory: "ctypes._Pointer[ctypes.c_char]", length: int) -> int:
        try:
            found = translated(text.decode()).encode() + b"\0"
            if len(found) > length:
                raise RuntimeError(f"a module has a table of {len(found)} bytes, not {length}")
        except (UnknownPtxError, RuntimeError) as error:
            print(f"emulator: {error}", file=sys.stderr)
            library().emulator_problem(str(error).encode())
            return 1
        ctypes.memmove(memory, found, len(found))
        return 0

    return called


_translate = _translator(lambda text: str(build.kernel_library(translate(text))))
"""Compiles a module; its text is the path of the library."""

_table = _translator(lambda text: "\n".join(map(row, ptx.kernels(text))))
"""Reads no more of a module than the table of its kernels, for the null device."""


def row(kernel: ptx.Function) -> str:
    """A kernel's name, the most threads of a block, and the bytes of each parameter."""
    sizes = (p.nbytes for p in kernel.parameters)
    return " ".join(map(str, (kernel.name, kernel.most_threads, *sizes)))
