"""containers/: the Dockerfile passes its linter, and the steps of the image work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT

HERE = ROOT / "containers"


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: the extra `test` has it on Linux, for x86-64")
    command = [hadolint, "--no-color", HERE / "Dockerfile"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_steps_of_an_image_install_what_trains(has_compiler: bool, tmp_path: Path) -> None:
    """As in an image: into a new environment, from what .dockerignore keeps; needs PyPI."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    for name in re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name, **({"ignore": leave} if copy is shutil.copytree else {}))
    own = {"PATH": f"{Path(sys.executable).resolve().parent}:{os.defpath}", "HOME": str(tmp_path)}
    own |= {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "OMPI_"))}
    own |= {"NNMPI_BUILD": "native"} | ({} if has_compiler else {"CC": "/bin/false"})

    def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=own, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
        )

    built = ran("sh", source / "containers" / "install", source, venv, "")
    if not has_compiler:
        assert built.returncode == 1
        assert built.stderr.splitlines()[-1].endswith("install gcc, libc6-dev and Python's headers")
        return
    assert built.returncode == 0, built.stderr
    own["PATH"] = f"{venv / 'bin'}:{own['PATH']}"
    assert "two ranks found each other" in ran("nnmpi", "doctor").stdout
    options = ["--model", "iris-mlp", "--data", "iris", "--epochs", "2"]
    trained = ran("mpirun", "--oversubscribe", "-n", "2", "nnmpi", "train", *options)
    assert (trained.returncode, trained.stdout[-200:].count("done: ")) == (0, 1), trained.stderr
