"""Files of another kind and pipes in the place of a file that is written."""

import os
from pathlib import Path

import pytest
from helpers.commands import IRIS, Command

RUN = (*IRIS, "--steps", "1", "--quiet")
OPTIONS = ("save", "trace", "log")


@pytest.mark.parametrize("option", ["save", "trace"])
def test_a_file_of_another_kind_is_not_replaced(
    option: str, tmp_path: Path, command: Command
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import nnmpi")
    completed = command(*RUN, f"--{option}", str(mine))
    assert (completed.status, completed.out) == (2, "")
    assert "it exists, and is not a" in completed.err
    assert mine.read_text() == "import nnmpi"
    mine.write_text("")
    assert command(*RUN, f"--{option}", str(mine)).status == 0
    assert command(*RUN, f"--{option}", str(mine)).status == 0  # as often as one likes


@pytest.mark.parametrize("option", OPTIONS)
def test_a_pipe_that_nobody_reads_is_not_waited_for(
    option: str, tmp_path: Path, command: Command
) -> None:
    os.mkfifo(tmp_path / "pipe")
    completed = command(*RUN, f"--{option}", "pipe")
    assert completed.status == 2
    assert (
        "a pipe that no process reads" if option == "log" else "a device or a pipe"
    ) in completed.err


def test_a_pipe_with_a_reader_gets_the_log(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        completed = command(*IRIS, "--steps", "1", "--log", "pipe")
        assert completed.status == 0
        assert reader.read() == completed.out
