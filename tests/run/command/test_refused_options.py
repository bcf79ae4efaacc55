"""What the commands train, plan and simulate refuse in one line."""

from importlib import import_module

import pytest
from helpers.commands import Command
from helpers.refusals import check, refused

KINDS = ("", " collective", " gemm", " goodput", " pipeline", " sync", " layout")


@refused("train", "train --dry-run", "plan", *(f"simulate{kind}" for kind in KINDS))
def test_unusable_arguments_are_a_one_line_error(
    said: str, words: list[str], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the directory of the fixture `command`."""
    module = import_module(f"nnmpi.{said.split()[0]}")  # which may be an add-on's
    check(module.main, said, words, capsys)
