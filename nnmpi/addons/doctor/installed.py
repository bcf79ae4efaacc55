"""Finds the MPI libraries of this machine and their launchers, and the settings to load one in
mpi4py.

mpi4py's wheel contains no MPI. It is compiled for two ABIs, and loads a library of either ABI by
name: `libmpi.so.40` (Open MPI) or `libmpi.so.12` (MPICH and compatible libraries). Debian calls
MPICH's library `libmpich.so.12`, so mpi4py finds it only by a link in a folder of LD_LIBRARY_PATH.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

OPEN_MPI, MPICH = "Open MPI", "MPICH"
DEBIAN = "libmpich.so.12"
NAMES = {"libmpi.so.40": OPEN_MPI, "libmpi.so.12": MPICH, DEBIAN: MPICH}
"""The file names of MPI libraries, and the ABI of each."""

LAUNCHERS = {OPEN_MPI: ("mpirun.openmpi", "mpirun"), MPICH: ("mpirun.mpich", "mpirun")}
"""The launchers of each ABI; Debian adds a suffix where several MPIs share a folder."""

VERSIONS = {
    r"\(Open(?: MPI|RTE)\) (\S+)": (OPEN_MPI, "Open MPI"),
    r"Intel\(R\) MPI Library.*Version (\S+)": (MPICH, "Intel MPI"),
    r"HYDRA build details:\s+Version:\s+(\S+)": (MPICH, "MPICH"),
}
"""Patterns of a launcher's --version, each with the ABI and the name of the MPI that prints it."""

LINKS = "$HOME/.local/lib/mpich"
"""The folder of the link to Debian's MPICH, which the user makes."""


class Library(NamedTuple):
    """An MPI library on this machine, of the ABI of Open MPI or MPICH. The file has a name under
    which mpi4py finds it, or is Debian's MPICH."""

    path: Path
    abi: str

    @property
    def needs_link(self) -> bool:
        """Returns True for Debian's MPICH, which mpi4py finds only by a link named libmpi.so.12."""
        return self.path.name == DEBIAN

    def settings(self, links: str, loader_path: str = "") -> dict[str, str]:
        """Returns the environment variables with which mpi4py loads this library, from the present
        LD_LIBRARY_PATH and a folder with a link to it."""
        if not self.needs_link:
            return {"MPI4PY_LIBMPI": str(self.path)}
        path = os.pathsep.join(filter(None, (links, loader_path)))
        return {"MPI4PY_LIBMPI": f"{links}/libmpi.so.12", "LD_LIBRARY_PATH": path}

    def command(self, loader_path: str = "") -> str:
        """Returns a shell command after which mpi4py loads this library; it makes a link, if
        needed."""
        file = shlex.quote(str(self.path))
        if not self.needs_link:
            return f"export MPI4PY_LIBMPI={file}"
        settings = self.settings(LINKS, loader_path).items()
        link = f"mkdir -p {LINKS} && ln -sf {file} {LINKS}/libmpi.so.12"
        return f"{link} && export {' '.join(f'{name}={value}' for name, value in settings)}"


class Launcher(NamedTuple):
    """An mpirun: its file, the ABI of its MPI, and the MPI's name and version."""

    path: Path
    abi: str
    version: str

    def __str__(self) -> str:
        return f"{self.path} ({self.version})"


def folders(prefixes: Iterable[str], loader_path: str, cache: str, path: str) -> Iterator[Path]:
    """Yields the folders that may contain an MPI library, in mpi4py's order: `lib` of Python's
    prefixes, LD_LIBRARY_PATH, the loader's cache (the output of `ldconfig -p`), and those beside
    the launchers on PATH."""
    yield from (Path(prefix, "lib") for prefix in prefixes)
    yield from map(Path, filter(None, loader_path.split(os.pathsep)))
    for file in re.findall(r"=> (\S+)$", cache, re.MULTILINE):
        if Path(file).name in NAMES:
            yield Path(file).parent
    for folder in filter(None, path.split(os.pathsep)):
        if (launcher := Path(folder, "mpirun")).exists():
            for prefix in (Path(folder).parent, launcher.resolve().parent.parent):
                yield from (prefix / "lib", prefix / "lib64")


def libraries(where: Iterable[Path]) -> list[Library]:
    """Returns the MPI libraries in these folders; a file with several names counts once, with the
    first."""
    by_file: dict[Path, Library] = {}
    for folder in where:
        for name, abi in NAMES.items():
            if (file := folder.resolve() / name).exists():
                real = file.resolve()
                debian = real.with_name(DEBIAN)
                file = debian if real.name.startswith(DEBIAN) and debian.exists() else file
                by_file.setdefault(real, Library(file, abi))
    return [*by_file.values()]


def launcher_at(path: Path, version: str) -> Launcher | None:
    """Returns the launcher at `path` if its --version output is that of an MPI, else None."""
    for pattern, (abi, name) in VERSIONS.items():
        if match := re.search(pattern, version):
            return Launcher(path, abi, f"{name} {match[1]}")
    return None


def launcher_of(library: Library, version: Callable[[Path], str]) -> Launcher | None:
    """Returns the launcher in `bin` beside a library's `lib`, by the output of `version(file)`, or
    None."""
    prefixes = [p.parent for p in library.path.parents if p.name in ("lib", "lib64")]
    for file in (
        prefix / "bin" / name for prefix in prefixes[:1] for name in LAUNCHERS[library.abi]
    ):
        launcher = launcher_at(file, version(file)) if file.exists() else None
        if launcher and launcher.abi == library.abi:
            return launcher
    return None


def loading(
    library: Library,
    launcher: Launcher | None,
    load: Callable[[Mapping[str, str]], tuple[int, str]],
    loader_path: str = "",
) -> str:
    """Returns the shell command after which mpi4py loads a library, and the launcher to start ranks
    with; "" if `load(environment variables)` does not return status 0 and "VERSION;PATH"."""
    with TemporaryDirectory() as links:
        Path(links, "libmpi.so.12").symlink_to(library.path)
        status, text = load(library.settings(links, loader_path))
    if status:
        return ""
    start = f"start ranks by {launcher}" if launcher else "there is no mpirun beside it"
    return f"for {text.partition(';')[0]}: {library.command(loader_path)}; {start}"
