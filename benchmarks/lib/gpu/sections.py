"""What is measured on a GPU, in the order of its worth, and the process that measures a section."""

import ctypes
import faulthandler
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lib.gpu import device_tests, graphs, host, kernel_cache, kernels, plans, steps
from lib.gpu.device import Cases, Device, Found, LeftOutError
from lib.gpu.rows import Row, Rows


class Section(NamedTuple):
    """What a section measures.

    share      of the time that is left, in parts of all
    longest    seconds for one case, which is an error if it takes longer
    computes   on the emulated device, it needs results: nothing is computed for the others
    """

    cases: Callable[[Device], Cases]
    share: float
    longest: float
    computes: bool = False


def machine(on: Device) -> Cases:
    """What the figures belong to."""
    return {"machine": partial(described, on)}


def described(on: Device) -> Found:
    import cupy
    import numpy

    import nnmpi
    from nnmpi.addons.cuda import cudnn

    runtime = cupy.cuda.runtime
    about = {
        "gpu": "emulated" if on.emulated else runtime.getDeviceProperties(0)["name"].decode(),
        "nnmpi": nnmpi.__version__,
        "python": sys.version.split()[0],
        "numpy": numpy.__version__,
        "cupy": cupy.__version__,
        "cuda runtime": runtime.runtimeGetVersion(),
        "cuda driver": runtime.driverGetVersion(),
        "cudnn": cudnn.version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    return Found(runtime.getDeviceCount(), "devices", about)


SECTIONS = {
    "machine": Section(machine, 20, 20),
    "host": Section(host.cases, 20, 10),
    "decided by a GPU": Section(device_tests.decided, 90, 60, computes=True),
    "graphs": Section(graphs.graphs, 40, 30),
    "kernels": Section(kernels.cases, 25, 10),
    "plans of cuDNN": Section(plans.cases, 60, 50),
    "loops": Section(steps.loops, 90, 40),
    "trainers": Section(steps.trainers, 60, 60),
    "PyTorch": Section(steps.torch_cases, 130, 100),
    "profiles": Section(graphs.profiles, 30, 30),
    "tests": Section(device_tests.files, 200, 900, computes=True),
}

KERNELS = "kernels"
"""The folder of kernels that are compiled for a GPU, beside the rows."""


def end_with_parent() -> None:
    """Has this process killed when the one that started it ends, however that is."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(folder: str, name: str, kind: str, kernels_at: str) -> None:
    """Measures the cases of a section that have no row; one that takes too long ends this process.

    kind         gpu, emulated, or warm: emulated, and kernels are compiled for a GPU too
    kernels_at   the folder of these kernels
    """
    end_with_parent()
    faulthandler.enable()
    # a step that is not compiled would be timed as written
    warnings.filterwarnings("error", ".*not replayed", UserWarning)
    rows, section, on = Rows(Path(folder)), SECTIONS[name], Device(kind != "gpu")
    on.set_up(is_null=not section.computes)
    if kind == "warm":
        kernel_cache.make(Path(kernels_at))
    elif kind == "gpu":
        kernel_cache.use(Path(kernels_at))
    done = rows.cases(name)
    for case, measure in section.cases(on).items():
        if case in done:
            continue
        rows.begin(case)
        faulthandler.dump_traceback_later(section.longest, exit=True)
        try:
            found = measure()
        except LeftOutError as reason:
            found = Found(None, "left out", {"why": str(reason)})
        faulthandler.cancel_dump_traceback_later()
        rows.add(Row(name, case, *found, emulated=on.emulated))
        on.free()
    sys.stdout.flush()
    os._exit(0)  # libraries of GPUs take seconds to end, or crash
