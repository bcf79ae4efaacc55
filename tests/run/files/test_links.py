"""Links and pipes in the place of a file that is written, as another user may put them there."""

import os
from pathlib import Path

import pytest
from helpers.commands import IRIS, Command
from helpers.datafiles import refused

import nnmpi
from nnmpi.run.files.atomic import replaced

RUN = (*IRIS, "--steps", "1", "--quiet")
OPTIONS = ("save", "trace", "log")
STATE = {"a": nnmpi.tensor([1.0]).numpy()}
WHY = "is a symbolic link in a folder that every user may write"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("option", OPTIONS)
def test_a_link_in_a_shared_folder_is_not_followed(
    option: str, shared: Path, tmp_path: Path, command: Command
) -> None:
    """Neither to a file, nor to one that is not there, nor from a link elsewhere."""
    mine = tmp_path / "mine"
    mine.write_text('{"event": "start"}')
    (shared / "mine").symlink_to(mine)
    (shared / "new").symlink_to(tmp_path / "new")
    (tmp_path / "link").symlink_to(Path("shared") / "mine")
    for path in (shared / "mine", shared / "new", tmp_path / "link"):
        completed = command(*RUN, f"--{option}", str(path))
        assert (completed.status, completed.out) == (2, "")
        assert WHY in completed.err
    assert mine.read_text() == '{"event": "start"}'
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user")
@pytest.mark.parametrize("option", OPTIONS)
def test_a_folder_behind_the_link_of_another_user_is_not_written(
    option: str, shared: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "mine").mkdir()
    (shared / "folder").symlink_to(tmp_path / "mine")
    assert command(*RUN, f"--{option}", str(shared / "folder" / "a")).status == 0  # of the owner
    os.chown(shared / "folder", 12345, 12345, follow_symlinks=False)
    completed = command(*RUN, f"--{option}", str(shared / "folder" / "b"))
    assert completed.status == 2
    assert WHY in completed.err
    assert os.listdir(tmp_path / "mine") == ["a"]


def test_a_link_that_is_put_there_during_the_run_is_not_followed(
    shared: Path, tmp_path: Path
) -> None:
    (shared / "m").symlink_to(tmp_path / "mine")
    with refused(f"cannot save {shared / 'm'}", WHY):
        nnmpi.save(STATE, shared / "m")
    with pytest.raises(PermissionError, match=WHY), replaced(shared / "m", "x"):
        pass
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("option", ["save", "trace"])
def test_a_file_of_another_kind_is_not_replaced(
    option: str, tmp_path: Path, command: Command
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import nnmpi")
    completed = command(*RUN, f"--{option}", str(mine))
    assert (completed.status, completed.out) == (2, "")
    assert "it is there already, and is not a" in completed.err
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
        "a pipe that nobody reads" if option == "log" else "a device or a pipe"
    ) in completed.err


def test_a_pipe_with_a_reader_gets_the_log(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        completed = command(*IRIS, "--steps", "1", "--log", "pipe")
        assert completed.status == 0
        assert reader.read() == completed.out
