"""The compiled kernels: built without a compiler, and under the sanitizers of one."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers.mpijob import ROOT

from nnmpi import native
from nnmpi.native.instructions import NEEDS, available

GCC = shutil.which("gcc")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of the package, with nothing compiled."""
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "nnmpi", tmp_path / "nnmpi", ignore=leave)
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, whose package comes first."""
    path = os.pathsep.join(map(str, (folder, ROOT / "tests")))
    env: Mapping[str, str] = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def built(folder: Path) -> list[str]:
    return sorted(
        path.name.partition(".")[0] for path in (folder / "nnmpi" / "native").glob("*.so")
    )


def test_without_a_compiler_numpy_computes(copy: Path) -> None:
    made = run(copy, "setup.py", "build_ext", "--inplace", CC="/no/compiler")
    assert made.returncode == 0, made.stderr
    assert built(copy) == []
    text = "import nnmpi; from nnmpi import native; print(nnmpi.__file__, native.INSTRUCTIONS)"
    found = run(copy, "-c", text)
    assert found.stdout.split() == [str(copy / "nnmpi" / "__init__.py"), "none"], found.stderr


@pytest.mark.parametrize(
    ("files", "compiler", "says"),
    [
        ((), "", "not built in {0}"),
        (("module.c",), "", "not built in {0}"),
        (("_avx2.so",), "", "_avx2.so of {0} do not run here, so NumPy computes"),
        ((), "/no/compiler", "half the speed: install a C compiler, such as gcc; then install nnm"),
    ],
)
def test_missing_kernels_are_told_of(
    files: tuple[str, ...],
    compiler: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.delenv("NNMPI_NATIVE", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(native.shutil, "which", lambda name: None if compiler else name)
    monkeypatch.setattr(native, "_module", None)
    assert says.format(tmp_path) in native.lack()
    assert "\n" not in native.lack()
    monkeypatch.setenv("NNMPI_NATIVE", "avx2")
    assert f": none in {tmp_path} for NNMPI_NATIVE=avx2, so NumPy computes" in native.lack()
    monkeypatch.setenv("NNMPI_NATIVE", "0")
    assert native.lack() == ""


STAND_IN = """#!/bin/sh
echo "$@" >>{0}/log
while [ $# -gt 1 ]; do [ "$1" = -o ] && : >"$2"; shift; done
"""


def test_which_sets_are_built(copy: Path) -> None:
    """With a stand-in for the compiler, which makes empty files."""
    (copy / "cc").write_text(STAND_IN.format(copy))
    (copy / "cc").chmod(0o755)
    for name in ("setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    best = f"_{available()[0]}"

    def editable(**environment: str) -> set[str]:
        """The sets that an editable installation has compiled."""
        (copy / "log").write_text("")
        command = ("setup.py", "editable_wheel", "--dist-dir", str(copy))
        made = run(copy, *command, CC=str(copy / "cc"), LDSHARED=str(copy / "cc"), **environment)
        assert made.returncode == 0, made.stderr
        return {*re.findall(r"-DMODULE=(\w+)", (copy / "log").read_text())}

    assert editable(NNMPI_BUILD="native") == {best}
    assert built(copy) == [best]
    others = {f"_{name}" for name in NEEDS if platform.machine() == "x86_64"} | {"_baseline"}
    assert editable() == others - {best}  # those that are newer than their sources stay
    assert {*built(copy)} == others
    assert editable(NNMPI_BUILD="native") == {*()}
    later = (copy / "setup.py").stat().st_mtime + 1000
    os.utime(copy / "nnmpi" / "native" / "lanes.h", (later, later))
    assert editable(NNMPI_BUILD="native") == others  # none is left that is older
    wrong = run(copy, "setup.py", "build_ext", NNMPI_BUILD="fast")
    assert "NNMPI_BUILD is 'fast': set it to native or one of baseline" in wrong.stderr


@pytest.mark.skipif(GCC is None, reason="there is no gcc")
def test_no_function_takes_more_than_16_kb_of_the_stack(tmp_path: Path) -> None:
    """Of the widest vectors, whose arrays are the longest; the stack of a thread may be short."""
    flags = [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bf16",
        "-mamx-tile",
        "-mamx-bf16",
        "-mf16c",
    ]
    wide = flags if platform.machine() in ("x86_64", "AMD64") else []
    headers = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    limit = ["-O1", "-Werror", "-Wframe-larger-than=16384", "-DMODULE=compiled", "-c"]
    sources = map(str, sorted((ROOT / "nnmpi" / "native").glob("*.c")))
    command = [str(GCC), "-std=c11", "-fPIC", *wide, *headers, *limit, *sources]
    made = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.skipif(GCC is None, reason="there is no gcc")
@pytest.mark.timeout(320)
def test_sanitizers_find_nothing(copy: Path) -> None:
    library = subprocess.run(
        [str(GCC), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("gcc has no library of the address sanitizer")
    compiler = copy / "gcc-O1"  # with the -O3 of setup.py it would take four times as long
    compiler.write_text(f'#!/bin/sh\nexec {GCC} "$@" -O1\n')
    compiler.chmod(0o755)
    flags = {"CC": str(compiler), "CFLAGS": f"{SANITIZERS} -g1", "LDFLAGS": SANITIZERS}
    instructions = "avx2" if "avx2" in dict(native.modules()) else "baseline"
    flags["NNMPI_BUILD"] = instructions
    made = run(copy, "setup.py", "build_ext", "--inplace", **flags)
    assert made.returncode == 0, made.stderr
    assert built(copy) == [f"_{instructions}"], made.stderr
    cases = [str(ROOT / "tests" / "kernels" / f"test_{name}.py") for name in ("table", "arguments")]
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={copy}")
    found = run(
        copy,
        *("-m", "pytest", *options, *cases),
        LD_PRELOAD=library,
        NNMPI_NATIVE=instructions,
        ASAN_OPTIONS="detect_leaks=0",
    )
    assert found.returncode == 0, f"{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
