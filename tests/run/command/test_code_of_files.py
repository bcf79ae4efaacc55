"""What a file of options may not do: import code that the command line does not allow."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import Command

from nnmpi import train

PLANTED = "from pathlib import Path\nPath('ran').touch()\nfrom nnmpi.nn.models import iris_mlp as f"
RUN = ("--data", "iris", "--steps", "1")


@pytest.fixture(autouse=True)
def planted(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "planted.py").write_text(PLANTED)
    yield
    sys.modules.pop("planted", None)


@pytest.mark.parametrize("option", ["model", "allreduce"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_code_that_a_file_names_is_not_imported(
    option: str, more: tuple[str], command: Command
) -> None:
    Path("run.toml").write_text(f'{option} = "planted:f"')
    completed = command("--config", "run.toml", *RUN, *more)
    assert (completed.status, completed.out) == (2, "")
    assert f"config run.toml: {option} 'planted:f' would import" in completed.err
    assert "add --allow-code if you trust this file" in completed.err
    assert not Path("ran").exists()


def test_a_file_cannot_allow_itself_code(command: Command) -> None:
    Path("run.toml").write_text('model = "planted:f"\nallow-code = true')
    assert command("--config", "run.toml", *RUN).status == 2
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "flags", [("--config", "run.toml", "--allow-code"), ("--model", "planted:f")]
)
def test_the_command_line_allows_code(flags: tuple[str], command: Command) -> None:
    Path("run.toml").write_text('model = "planted:f"')
    assert command(*flags, *RUN).status == 0
    assert Path("ran").exists()


def test_a_flag_overrides_the_code_of_a_file(command: Command) -> None:
    Path("run.toml").write_text('model = "planted:f"')
    assert train.config(["--config", "run.toml", "--model", "iris-mlp"]).model == "iris-mlp"
    Path("run.toml").write_text('model = "mlp:4-8-3"')
    assert train.config(["--config", "run.toml"]).model == "mlp:4-8-3"
