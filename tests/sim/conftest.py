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


@pytest.fixture
def refused(simulator: Callable[[str], Completed]) -> Callable[[str, tuple[str, ...]], None]:
    """Runs a command that ends with one line that has these words."""

    def run(text: str, words: tuple[str, ...]) -> None:
        result = simulator(text)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("nnmpi.simulate: ")
        assert result.err.endswith("\n")
        assert len(result.err.splitlines()) == 1
        assert [word for word in words if word not in result.err] == [], result.err

    return run
