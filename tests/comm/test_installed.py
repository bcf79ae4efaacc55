"""MPI libraries on file systems of several kinds: which are found, their launchers, and how mpi4py
loads them."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nnmpi.addons.doctor import installed
from nnmpi.addons.doctor.installed import MPICH, OPEN_MPI, Launcher, Library

VERSIONS = {
    "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to": (OPEN_MPI, "Open MPI 4.1.4"),
    "mpirun (Open MPI) 5.0.11\n": (OPEN_MPI, "Open MPI 5.0.11"),
    "HYDRA build details:\n    Version:          4.0.2\n": (MPICH, "MPICH 4.0.2"),
    "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 2025": (MPICH, "Intel MPI 2021.18"),
}
OPEN, OPEN_5, HYDRA, INTEL = VERSIONS


@pytest.mark.parametrize("text", VERSIONS)
def test_versions_of_launchers(text: str) -> None:
    file = Path("/bin/mpirun")
    assert installed.launcher_at(file, text) == Launcher(file, *VERSIONS[text])


@pytest.mark.parametrize("text", ["", "slurm 23.02", "Error: no such option --version"])
def test_other_programs_are_no_launchers(text: str) -> None:
    assert installed.launcher_at(Path("/bin/mpirun"), text) is None


class Files:
    """The files of a root folder, and what its launchers print."""

    def __init__(self, root: Path, links: Mapping[str, str], launchers: Mapping[str, str]) -> None:
        self.root, self.cache, self._printed = root, "", dict[Path, str]()
        for name, to in links.items():
            file = self._new(name)
            file.symlink_to(to) if to else file.touch()
            self.cache += f"\t{file.name} (libc6,x86-64) => {file}\n"
        for name, printed in launchers.items():
            self._new(name).touch()
            self._printed[(root / name).resolve()] = printed

    def _new(self, name: str) -> Path:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return self.root / name

    def version(self, file: Path) -> str:
        return self._printed[file.resolve()]

    def found(
        self, *prefixes: str, loader: str = "", cache: bool = False, path: str = ""
    ) -> dict[str, str]:
        """The libraries that are found, each with its launcher, by paths below the root."""
        where = installed.folders(
            [str(self.root / prefix) for prefix in prefixes],
            str(self.root / loader) if loader else "",
            self.cache if cache else "",
            str(self.root / path) if path else "",
        )
        pairs = ((x, installed.launcher_of(x, self.version)) for x in installed.libraries(where))
        return {
            self._below(library.path): f"{self._below(x.path)} {x.version}" if x else ""
            for library, x in pairs
        }

    def _below(self, path: Path) -> str:
        return str(path.relative_to(self.root.resolve()))


LIB = "usr/lib/x86_64-linux-gnu"
DEBIAN_OPEN = {f"{LIB}/libmpi.so.40.30.4": "", f"{LIB}/libmpi.so.40": "libmpi.so.40.30.4"}
DEBIAN_MPICH = {f"{LIB}/libmpich.so.12.2.2": "", f"{LIB}/libmpich.so.12": "libmpich.so.12.2.2"}
OF_DEBIAN = {
    "usr/bin/mpirun": OPEN, "usr/bin/mpirun.openmpi": OPEN, "usr/bin/mpirun.mpich": HYDRA,
}  # fmt: skip


def test_debian_with_both(tmp_path: Path) -> None:
    files = Files(tmp_path, DEBIAN_OPEN | DEBIAN_MPICH, OF_DEBIAN)
    assert files.found(cache=True, path="usr/bin") == {
        f"{LIB}/libmpi.so.40": "usr/bin/mpirun.openmpi Open MPI 4.1.4",
        f"{LIB}/libmpich.so.12": "usr/bin/mpirun.mpich MPICH 4.0.2",
    }


def test_debian_with_mpich_alone(tmp_path: Path) -> None:
    files = Files(tmp_path, DEBIAN_MPICH, {"usr/bin/mpirun": HYDRA})
    assert files.found(cache=True) == {f"{LIB}/libmpich.so.12": "usr/bin/mpirun MPICH 4.0.2"}


def test_debian_with_a_library_and_the_mpirun_of_another(tmp_path: Path) -> None:
    files = Files(tmp_path, DEBIAN_OPEN, {"usr/bin/mpirun": HYDRA})
    assert files.found(cache=True) == {f"{LIB}/libmpi.so.40": ""}


def test_a_link_of_the_user_to_mpich_of_debian_is_not_another_library(tmp_path: Path) -> None:
    links = {"home/mpich/libmpi.so.12": str(tmp_path / LIB / "libmpich.so.12")}
    files = Files(tmp_path, DEBIAN_MPICH | links, OF_DEBIAN)
    found = files.found(loader="home/mpich", cache=True)
    assert found == {f"{LIB}/libmpich.so.12": "usr/bin/mpirun.mpich MPICH 4.0.2"}


def test_a_virtual_environment_comes_first(tmp_path: Path) -> None:
    own = {"venv/lib/libmpi.so.40": ""}
    files = Files(tmp_path, DEBIAN_OPEN | own, {"venv/bin/mpirun": OPEN_5} | OF_DEBIAN)
    found = files.found("venv", cache=True)
    assert [*found] == ["venv/lib/libmpi.so.40", f"{LIB}/libmpi.so.40"]
    assert found["venv/lib/libmpi.so.40"] == "venv/bin/mpirun Open MPI 5.0.11"


def test_a_module_that_sets_path_only(tmp_path: Path) -> None:
    files = Files(tmp_path, {"opt/mpich/lib64/libmpi.so.12": ""}, {"opt/mpich/bin/mpirun": INTEL})
    assert files.found(path="opt/mpich/bin") == {
        "opt/mpich/lib64/libmpi.so.12": "opt/mpich/bin/mpirun Intel MPI 2021.18"
    }


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path, {f"{LIB}/libmpi_cxx.so.40": ""}, {"usr/bin/mpirun": OPEN})
    assert files.found("venv", loader="lib", cache=True, path="usr/bin") == {}


def tried(works: bool, settings: dict[str, str]) -> Callable[[Mapping[str, str]], tuple[int, str]]:
    """A stand-in for the load in a new process, which keeps the settings and what they link to."""

    def load(given: Mapping[str, str]) -> tuple[int, str]:
        settings.update(given)
        settings["file"] = os.path.realpath(given["MPI4PY_LIBMPI"])
        return (0, "Open MPI v4.1.4;/usr/lib/x.so") if works else (1, "cannot load")

    return load


def test_the_command_for_a_library_by_its_name() -> None:
    library, settings = Library(Path("/usr/lib/libmpi.so.40"), OPEN_MPI), dict[str, str]()
    text = installed.loading(
        library, Launcher(Path("/usr/bin/mpirun.openmpi"), OPEN_MPI, "Open MPI 4.1.4"),
        tried(True, settings), "/opt/lib",
    )  # fmt: skip
    assert text == (
        "for Open MPI v4.1.4: export MPI4PY_LIBMPI=/usr/lib/libmpi.so.40; start ranks by "
        "/usr/bin/mpirun.openmpi (Open MPI 4.1.4)"
    )
    assert [*settings] == ["MPI4PY_LIBMPI", "file"]


def test_the_command_for_mpich_of_debian_makes_a_link(tmp_path: Path) -> None:
    file = tmp_path / "libmpich.so.12"
    file.touch()
    settings = dict[str, str]()
    text = installed.loading(Library(file, MPICH), None, tried(True, settings), "/opt/lib")
    links = "$HOME/.local/lib/mpich"
    assert text.partition(": ")[2] == (
        f"mkdir -p {links} && ln -sf {file} {links}/libmpi.so.12 && export "
        f"MPI4PY_LIBMPI={links}/libmpi.so.12 LD_LIBRARY_PATH={links}:/opt/lib; there is no mpirun "
        "beside it"
    )
    assert settings["file"] == str(file.resolve())  # it was tried by such a link
    assert settings["LD_LIBRARY_PATH"] == f"{Path(settings['MPI4PY_LIBMPI']).parent}:/opt/lib"


def test_no_command_is_told_that_was_tried_in_vain() -> None:
    library = Library(Path("/usr/lib/libmpi.so.40"), OPEN_MPI)
    assert installed.loading(library, None, tried(False, {})) == ""
