"""docs/debugging.md: its mistakes, made on purpose, show what the page says."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.mpijob import run
from helpers.programs import printed, python

PAGE = (Path(__file__).parents[2] / "docs" / "debugging.md").read_text(encoding="utf-8")
LATE, ALONE, SOFTSIGN, MINE = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
SHOWN = dict(re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```", PAGE, re.S | re.M))
REPORT = """\
  last calls:
    all_reduce of 1 float32 by ring (call 1 of Comm world, alone.py:10)
  stack:
    File "alone.py", line 10, in <module>
      comm.all_reduce(np.ones(1, np.float32), "ring")
"""  # of which the page shows some lines
FIRST = "rank 0 has waited for longer than NNMPI_TIMEOUT=3 s"  # of whichever rank looks first


def lines(text: str) -> set[str]:
    """The lines, without what depends on the run: folders, the seconds of a wait, and which rank
    was the first to tell a mistake of both."""
    text = re.sub(r'File ".*?(\w+\.py)"', r'File "\1"', text)
    text = re.sub("^rank [01]: ", "rank R: ", text, flags=re.M)
    return set(re.sub(r"for \d+\.\d s", "for T s", text).splitlines())


def output_of(command: str) -> str:
    """What the job of a page prints, which fails; or a script on its own."""
    words = shlex.split(command)
    at = words.index("python") + 1
    if "mpirun" not in words:
        return python(*words[at:]).out
    env = dict(word.split("=", 1) for word in words[:at] if word.startswith("NNMPI_"))
    done = run(2, *words[at:], timeout=200, env=env, patient="NNMPI_TIMEOUT" in env)
    assert done.status == 1
    return done.out + done.err


@pytest.mark.parametrize("command", SHOWN)
def test_a_mistake_shows_what_the_page_says(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "alone.py").write_text(ALONE)
    (tmp_path / "mine.py").write_text(MINE)
    found = output_of(command)
    shown = SHOWN[command] + REPORT * ("TIMEOUT" in command)
    missing = lines(shown) - lines(found) - {"..."}
    assert {line for line in missing if not re.match(FIRST, line)} == set()
    assert ("TIMEOUT" in command) == bool(re.search(FIRST, found))


def test_the_gradient_of_the_page_is_wrong() -> None:
    assert printed(SOFTSIGN) == SOFTSIGN.strip().rpartition("# ")[2]
