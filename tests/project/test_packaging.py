"""What is shipped, and the rules of the house that no linter knows."""

import ast
import configparser
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import nnmpi

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nnmpi"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = ("scripts/quickstart", "scripts/soak", "scripts/test", "scripts/slurm/local")
BASH = (*SCRIPTS, "scripts/venv.sh", "scripts/slurm/train.sbatch", "containers/install", ".ci/run")
MAX_LINES = 330


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((ROOT / "setup.cfg").read_text())
    return parser


def package_data() -> list[str]:
    return setup_cfg()["options.package_data"]["nnmpi"].split()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_executed(script):
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("script", BASH)
def test_scripts_are_bash(script):
    command = ["bash", "-n", str(ROOT / script)]
    run = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("pattern", package_data())
def test_package_data_is_there(pattern):
    assert [path for path in PACKAGE.glob(pattern) if path.is_file()]


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


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE / "nn"])
def test_python_finds_its_own_modules_where_it_starts_in_a_folder(folder):
    """`import tokenize`, as tracebacks and pytest have it, takes a file of this name first, or a
    folder with an `__init__.py`."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    names = {path.stem for path in folder.glob("*.py")} | packages
    assert names & sys.stdlib_module_names == set()


def test_files_the_metadata_name_are_there():
    metadata = setup_cfg()["metadata"]
    readme = metadata["long_description"].removeprefix("file:").strip()
    for name in (readme, metadata["license_files"]):
        assert (ROOT / name).stat().st_size > 0


def test_one_version():
    version = setup_cfg()["metadata"]["version"]
    assert nnmpi.__version__ == version
    try:
        installed = importlib.metadata.version("nnmpi")
    except importlib.metadata.PackageNotFoundError:
        return  # run from the sources alone: there is no third number to compare
    assert installed == version


def test_one_idea_a_file():
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}
    assert len(lines) > 1
    assert {path.name: n for path, n in lines.items() if n > MAX_LINES} == {}


@pytest.mark.parametrize(
    ("script", "name", "value", "words"),
    [
        ("scripts/quickstart", "NNMPI_RANKS", "two", "NNMPI_RANKS is 'two': set it to a number"),
        ("scripts/slurm/train.sbatch", "NNMPI_VENV", "/no", "there is no /no/bin/activate: set NN"),
    ],
)
def test_a_variable_that_a_script_cannot_use_is_a_one_line_error(script, name, value, words):
    ended = subprocess.run(
        ["bash", ROOT / script],
        env={"PATH": os.environ["PATH"], name: value},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    assert f"{script}: {words}" in ended.stderr


def test_the_slurm_script_starts_one_rank_per_core_on_two_nodes(tmp_path):
    """With stand-ins for mpirun, which waits for SIGUSR1, and for scontrol.

    Slurm sends SIGUSR1 to the process that it started, which is the script.
    """
    wait = "trap 'exit 75' USR1\necho ready >&2\nfor _ in $(seq 999); do sleep 0.1; done\n"
    (tmp_path / "mpirun").write_text(f'#!/bin/sh\necho "$OPENBLAS_NUM_THREADS" "$@"\n{wait}')
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@"\n')
    for name in ("mpirun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text("")
    script = ROOT / "scripts" / "slurm" / "train.sbatch"
    with subprocess.Popen(
        ["bash", script, "--model", "mnist-cnn"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "NNMPI_VENV": str(tmp_path),
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "1",
        },
    ) as process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (75, "")
    started, queued = out.splitlines()
    assert started.startswith("1 python -m nnmpi.train --checkpoint-dir nnmpi-7.checkpoints ")
    assert started.endswith("--save nnmpi-7.safetensors --model mnist-cnn")
    assert queued == "requeue 7"
    trap = next(line for line in script.read_text().splitlines() if line.startswith("trap "))
    early = f"set -euo pipefail\n{trap}\nkill -USR1 $$\necho goes on"  # before there is an mpirun
    before = subprocess.run(["bash", "-c", early], capture_output=True, text=True, check=True)
    assert before.stdout == "goes on\n"
    asked = re.findall(r"^#SBATCH (--\S+)$", script.read_text(), re.M)
    assert {"--nodes=2", "--cpus-per-task=1", "--signal=B:USR1@120", "--requeue"} <= {*asked}


@pytest.mark.parametrize("package", ["nnmpi", "nnmpi.nn"])
def test_a_star_import_binds_the_names_that_the_package_imports(package: str) -> None:
    found: dict[str, object] = {}
    exec(f"from {package} import *", found)
    source = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py").read_text()
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names} - {"*"}
    for node in imports:
        if node.names[0].name == "*":
            names.update(import_module(str(node.module)).__all__)
    assert found.keys() - {"__builtins__"} == {name for name in names if name[0] != "_"}
