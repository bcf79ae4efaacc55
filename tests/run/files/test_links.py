"""Links and pipes in the place of a file that is written, as another user may put them there."""

from pathlib import Path

import pytest
from helpers.commands import IRIS, Command

RUN = (*IRIS, "--steps", "1", "--quiet")
OPTIONS = ("save", "trace", "log")
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
