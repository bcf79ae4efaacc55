"""docs/mpi-primer.md: its programs print what the page shows, and the one that hangs does hang."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, run
from helpers.programs import python

PAGE = (ROOT / "docs" / "mpi-primer.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.S | re.M))
SHOWN = dict(re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```", PAGE, re.S | re.M))


def test_all_programs_but_one_are_shown_with_what_they_print() -> None:
    assert {*PROGRAMS} - {shlex.split(command)[-1] for command in SHOWN} == {"hangs.py"}


@pytest.mark.parametrize("command", SHOWN)
def test_a_program_prints_what_the_page_shows(command: str, tmp_path: Path) -> None:
    *words, name = shlex.split(command)
    (tmp_path / name).write_text(PROGRAMS[name])
    if "mpirun" in words:
        done = run(int(words[words.index("-n") + 1]), tmp_path / name)
    else:
        done = python(tmp_path / name)
    assert done.status == 0, done.err
    assert sorted(done.out.splitlines()) == SHOWN[command].splitlines()


def test_ranks_that_all_send_a_long_message_first_hang(tmp_path: Path) -> None:
    """It says when it begins to send, and ends itself half a second later."""
    ends = "comm.Barrier()\nprint('sends', flush=True)\n"
    ends += "threading.Timer(0.5, os._exit, [9]).start()\n"
    hangs = PROGRAMS["hangs.py"].replace("comm.Send(", f"{ends}comm.Send(")
    (tmp_path / "hangs.py").write_text(f"import os, threading\n{hangs}")
    done = run(2, tmp_path / "hangs.py")
    assert done.status == 9
    assert "sends" in done.out
    assert "has" not in done.out
