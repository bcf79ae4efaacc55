"""The files that are shipped, and one version of them."""

import configparser
import importlib.metadata
import os

import pytest
from helpers.mpijob import ROOT, outcome_of

import nnmpi

PACKAGE = ROOT / "nnmpi"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((ROOT / "setup.cfg").read_text())
    return parser


def package_data() -> list[str]:
    return setup_cfg()["options.package_data"]["nnmpi"].split()


def test_every_file_of_the_package_is_shipped():
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts]
    compiled = {".c", ".h", ".so"}  # setup.py and MANIFEST.in ship these
    others = [path for path in others if path.suffix not in compiled]
    shipped = {path for pattern in package_data() for path in PACKAGE.glob(pattern)}
    assert others
    assert [path for path in others if path not in shipped] == []
    for path in SOURCES:  # packages = find: passes over a folder that has no __init__.py
        assert path in shipped or (path.parent / "__init__.py").is_file(), path


def test_one_version():
    version = setup_cfg()["metadata"]["version"]
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
