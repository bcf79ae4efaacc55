"""containers/: the Dockerfile passes its linter, and the steps of the image work."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, Ended, outcome_of

HERE = ROOT / "containers"


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: the extra `test` has it on Linux, for x86-64")
    run = outcome_of([hadolint, "--no-color", HERE / "Dockerfile"], os.environ, 240)
    assert (run.status, run.out) == (0, "")


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

    def ran(*command: str | Path) -> Ended:
        return outcome_of(command, own, 400, tmp_path)

    built = ran("sh", source / "containers" / "install", source, venv, "")
    if not has_compiler:
        assert built.status == 1
        assert built.err.splitlines()[-1].endswith("install gcc, libc6-dev and Python's headers")
        return
    assert built.status == 0, built.err
    own["PATH"] = f"{venv / 'bin'}:{own['PATH']}"
    assert "two ranks found each other" in ran("nnmpi", "doctor").out
    options = ["--model", "iris-mlp", "--data", "iris", "--epochs", "2"]
    trained = ran("mpirun", "--oversubscribe", "-n", "2", "nnmpi", "train", *options)
    assert (trained.status, trained.out[-200:].count("done: ")) == (0, 1), trained.err
