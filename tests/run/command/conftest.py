"""Runs `nnmpi NAME` in the process of the test."""

import sys

import pytest
from helpers.commands import Command, Completed

from nnmpi import __main__
from nnmpi.commands import COMMANDS


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `nnmpi ARGUMENTS` in this process, whose modules are executed anew."""

    def run(*arguments: str) -> Completed:
        monkeypatch.setattr(sys, "argv", ["nnmpi", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "nnmpi", *arguments])
        for name in COMMANDS:  # runpy warns of a module that is imported already
            for module in (f"nnmpi.{name}", f"nnmpi.{name}.__main__"):
                monkeypatch.delitem(sys.modules, module, raising=False)
        try:
            status: object = __main__.main()
        except SystemExit as ended:
            status = ended.code
        return Completed(status, *capsys.readouterr())

    return run
