"""Files that are replaced whole: parts of killed writers, links, permissions, read-only files."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import IRIS, Command
from helpers.datafiles import refused
from helpers.mpijob import environment

import nnmpi
from nnmpi.io.files import atomic

STATE = {"a": nnmpi.tensor([1.0, 2.0]).numpy()}
WRITER = """
import sys, time
from pathlib import Path
from nnmpi.io.files.atomic import replaced
with replaced(Path("m"), "x") as file:
    file.write("half")
    file.flush()
    print(flush=True)
    time.sleep(600)
"""


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob(".nnmpi-*.part"))


def test_a_save_takes_the_part_of_a_killed_writer_but_not_of_a_living_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment({}), stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with refused("cannot save", "another process writes it"):
            nnmpi.save(STATE, tmp_path / "m")
        (part,) = parts(tmp_path)
        assert part.read_text() == "half"
        writer.kill()
    nnmpi.save(STATE, tmp_path / "other")  # of another name
    assert parts(tmp_path) == [part]
    nnmpi.save(STATE, tmp_path / "m")
    assert sorted(os.listdir(tmp_path)) == ["m", "other"]
    assert nnmpi.load(tmp_path / "m").keys() == STATE.keys()


def test_links_are_followed_and_permissions_kept(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, dangling = tmp_path / "far" / "m", tmp_path / "link", tmp_path / "dangling"
    nnmpi.save(STATE, target)
    target.chmod(0o640)
    link.symlink_to(target)
    dangling.symlink_to(Path("far") / "new")
    for path in (link, dangling):
        atomic.check_target(path)
        nnmpi.save({"b": STATE["a"]}, path)
        assert path.is_symlink()
        assert nnmpi.load(path).keys() == {"b"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path / "far")) == ["m", "new"]


@pytest.mark.parametrize("option", ["save", "trace", "log"])
def test_a_read_only_file_is_refused_before_training(option: str, command: Command) -> None:
    Path("old").write_text("precious")
    Path("old").chmod(0o444)
    completed = command(*IRIS, f"--{option}", "old")
    assert (completed.status, completed.out, len(completed.err.splitlines())) == (2, "", 1)
    assert "old: the file is read-only; chmod u+w it, or name another file" in completed.err
    assert Path("old").read_text() == "precious"
