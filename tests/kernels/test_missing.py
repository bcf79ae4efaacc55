"""What is said where compiled kernels are missing: of a checkout, and of an installed wheel."""

import shlex
import shutil
from pathlib import Path

import pytest

from nnmpi.arrays import native


def kernels_of(project: Path) -> Path:
    """The folder of kernels in a project or in site-packages."""
    return project / "nnmpi" / "arrays" / "native"


def test_the_remedy_in_a_checkout_names_the_folder_that_pip_installs(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    words = shlex.split(native.remedy(kernels_of(tmp_path)).replace(";", " "))
    assert words[words.index("-e") + 1] == str(tmp_path)


def test_a_checkout_without_a_compiler_needs_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.py").touch()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert native.remedy(kernels_of(tmp_path)).startswith("install a C compiler, such as gcc; then")


def test_the_remedy_for_an_installed_wheel_names_no_folder(tmp_path: Path) -> None:
    text = native.remedy(kernels_of(tmp_path))
    assert str(tmp_path) not in text
    assert "pip install -e" not in text
    assert f"with kernels for this processor ({' or '.join(native.available())})" in text


def test_the_real_remedy_names_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_module", None)
    monkeypatch.delenv("NNMPI_NATIVE", raising=False)
    project = Path(native.__file__).parents[3]
    assert f"pip install -e {project};" in native.missing()
