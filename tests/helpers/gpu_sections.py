"""benchmarks/gpu_minutes.py with sections that need no device: python -m helpers.gpu_sections

slow   twenty cases
ill    cases that crash, hang, fail, and cannot be measured
"""

import os
import signal
import sys
import time
from functools import partial
from typing import Any

from helpers.benchfiles import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import gpu_minutes
from lib.gpu import sections
from lib.gpu.device import Cases, Device, Found, LeftOutError
from lib.gpu.sections import Section


def found(k: int) -> Found:
    time.sleep(0.02)
    return Found(float(k), "us", {})


def fails() -> Found:
    raise ValueError("no such number: 7")


def is_left_out() -> Found:
    raise LeftOutError("no such library")


def crashes() -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def slow(on: Device) -> Cases:
    return {f"case {k}": partial(found, k) for k in range(20)}


def ill(on: Device) -> Cases:
    hangs: Any = partial(time.sleep, 60)
    cases = {"crash": crashes, "hang": hangs, "failure": fails, "library": is_left_out}
    return {"first": partial(found, 1), **cases, "last": partial(found, 2)}


def install() -> None:
    """Puts the sections in the place of those of a GPU."""
    sections.SECTIONS.clear()
    sections.SECTIONS.update(slow=Section(slow, 1, 10), ill=Section(ill, 1, 0.5))
    Device.set_up = lambda self, is_null: None  # type: ignore[method-assign]
    gpu_minutes.PROGRAM = "helpers.gpu_sections"


def main(*arguments: str) -> None:
    """The process of a section."""
    install()
    sections.main(*arguments)


if __name__ == "__main__":
    install()
    sys.exit(gpu_minutes.main())
