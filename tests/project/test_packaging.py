"""What is shipped, and the rules of the house that no linter knows."""

import configparser
import importlib.metadata
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import nnmpi

ROOT = Path(__file__).resolve().parents[2]
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
