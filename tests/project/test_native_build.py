"""The compiled kernels: which sets are built, without a compiler, and under its sanitizers."""

import os
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.mpijob import ROOT, Ended, outcome_of
from helpers.programs import python

from nnmpi.arrays import native

GCC = shutil.which("gcc")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of the package, with nothing compiled."""
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "nnmpi", tmp_path / "nnmpi", ignore=leave)
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def run(folder: Path, *command: str, **added: str) -> Ended:
    """Python in a folder, whose package comes first."""
    path = os.pathsep.join(map(str, (folder, ROOT / "tests")))
    return python(*command, folder=folder, timeout=600, PYTHONPATH=path, **added)


def built(folder: Path) -> list[str]:
    files = (folder / "nnmpi" / "arrays" / "native").glob("*.so")
    return sorted(file.name.partition(".")[0] for file in files)


def test_without_a_compiler_numpy_computes(copy: Path) -> None:
    made = run(copy, "setup.py", "build_ext", "--inplace", CC="/no/compiler")
    assert made.status == 0, made.err
    assert built(copy) == []
    text = "import nnmpi, nnmpi.arrays.native as n; print(nnmpi.__file__, n.INSTRUCTIONS)"
    found = run(copy, "-c", text)
    assert found.out.split() == [str(copy / "nnmpi" / "__init__.py"), "none"], found.err


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """The environment of a compiler that writes empty files, at once."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; : >"$2"\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler)}


def test_native_builds_one_set_for_a_wheel(copy: Path, stand_in: dict[str, str]) -> None:
    """Also where a checkout, or an earlier wheel, has other sets."""
    best, *others = [f"_{name}" for name in native.available()]
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    in_place = run(copy, "setup.py", "build_ext", "--inplace", **stand_in)
    assert in_place.status == 0, in_place.err
    assert {*others} < {*built(copy)}
    for wanted in ("", "native"):
        made = run(copy, "setup.py", "-q", "bdist_wheel", NNMPI_BUILD=wanted, **stand_in)
        assert made.status == 0, made.err
        (wheel,) = (copy / "dist").glob("*.whl")
        names = [Path(name).name for name in ZipFile(wheel).namelist() if name.endswith(".so")]
        sets = {name.partition(".")[0] for name in names}
        assert sets == ({best} if wanted else {*built(copy)})


@pytest.mark.skipif(len(native.available()) == 1, reason="this processor has one set only")
def test_native_renews_the_sets_of_a_checkout(copy: Path, stand_in: dict[str, str]) -> None:
    best, *_, least = native.available()
    old = copy / "nnmpi" / "arrays" / "native" / f"_{least}.abi3.so"
    old.write_text("of older sources")
    made = run(copy, "setup.py", "build_ext", "--inplace", NNMPI_BUILD="native", **stand_in)
    assert made.status == 0, made.err
    assert built(copy) == sorted([f"_{best}", f"_{least}"])
    assert old.read_text() == ""


@pytest.mark.skipif(GCC is None, reason="there is no gcc")
@pytest.mark.timeout(620)
def test_sanitizers_find_nothing(copy: Path) -> None:
    names = [str(GCC), "-print-file-name=libasan.so"]
    library = outcome_of(names, os.environ).out.strip()
    if not os.path.isabs(library):
        pytest.skip("gcc has no library of the address sanitizer")
    compiler = copy / "gcc-O0"  # with the -O3 of setup.py it would take eight times as long
    compiler.write_text(f'#!/bin/sh\nexec {GCC} "$@" -O0\n')
    compiler.chmod(0o755)
    flags = {"CC": str(compiler), "CFLAGS": f"{SANITIZERS} -g1", "LDFLAGS": SANITIZERS}
    instructions = "avx2" if "avx2" in dict(native.modules()) else "baseline"
    flags["NNMPI_BUILD"] = instructions
    made = run(copy, "setup.py", "build_ext", "--inplace", **flags)
    assert made.status == 0, made.err
    assert built(copy) == [f"_{instructions}"], made.err
    cases = [str(ROOT / "tests" / "kernels" / f"test_{name}.py") for name in ("table", "arguments")]
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={copy}")
    with_library = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    command = ("-m", "pytest", *options, *cases)
    found = run(copy, *command, NNMPI_NATIVE=instructions, **with_library)
    assert found.status == 0, f"{found.out[-3000:]}\n{found.err[-3000:]}"
