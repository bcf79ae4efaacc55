"""What train, measure, plan and simulate refuse in one line; they leave all files as they were."""

from importlib import import_module
from pathlib import Path

import pytest
from helpers.commands import Command
from helpers.refusals import check, refused

KINDS = ("", " collective", " gemm", " goodput", " pipeline", " sync", " layout")


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}


@refused("train", "train --dry-run", "measure", "plan", *(f"simulate{kind}" for kind in KINDS))
def test_unusable_arguments_are_a_one_line_error(
    said: str, words: list[str], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the directory of the fixture `command`."""
    Path("good.toml").write_text("epochs = 1")
    Path("logs.toml").write_text('log = "logs.toml"')
    module, before = import_module(f"nnmpi.{said.split()[0]}"), files()  # of an add-on, some
    check(module.main, said, words, capsys)
    assert files() == before
