"""The command nnmpi.simulate, run in this process: a file of tests names the kind of plan."""

import shlex
from collections.abc import Callable

import pytest
from helpers.commands import Completed

from nnmpi import simulate


@pytest.fixture
def simulator(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Completed]:
    def run(text: str) -> Completed:
        try:
            status: object = simulate.main([request.module.KIND, *shlex.split(text)])
        except SystemExit as exit:
            status = exit.code
        return Completed(status, *capsys.readouterr())

    return run
