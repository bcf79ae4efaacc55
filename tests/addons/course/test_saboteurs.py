"""Submissions that try to get points, or to hold up a grader, otherwise than by being right.

What adapters.py may not read is refused. A student's code that gets around this, here by a function
`hole` that runs any text, ends with a verdict and without points all the same.
"""

import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from classroom.check import COURSE
from classroom.grading import How, grade
from classroom.remote import StudentError, StudentProcess, StudentRank
from classroom.worker import Job, Row, Worker

TABLE = tomllib.loads(Path(__file__).with_name("saboteurs.toml").read_text(encoding="utf-8"))
EMPTY = (COURSE / "all-reduce" / "adapters.py").read_text(encoding="utf-8")
HOW = How(only="server sums", ranks=2, deadline=2.0)


def written(folder: Path, body: str, top: str = "") -> Path:
    """Adapters with this body of `server_all_reduce`, and this text at their top."""
    text = EMPTY.replace("    raise NotImplementedError", f"    {body}", 1)
    (folder / "adapters.py").write_text(f"{top}\n{text}", encoding="utf-8")
    return folder / "adapters.py"


def fault(adapters: Path, process: StudentProcess) -> str:
    """The first fault of `server sums` on two ranks, which are threads of this process."""
    job, rows = Job("all-reduce", str(adapters), 7, [(0, 2)], "", "", 30.0, False), list[Row]()
    Worker(job, process, rows.append, None).run()
    return next((row.text for row in rows if row.text), "")


# ---- what adapters.py may read


UNREADABLE = [
    ("x = " + "-" * 10**5 + "1", "cannot be loaded: it is nested too deeply for Python"),
    ("x = " + "(" * 999 + "1" + ")" * 999, "cannot be loaded: too many nested parentheses"),
    ("x = '\0'", "cannot be loaded: source code string cannot contain null bytes"),
]


@pytest.mark.parametrize(("body", "words"), [*TABLE["refused"], *UNREADABLE])
def test_what_leads_elsewhere_or_too_deep_is_refused(
    body: str, words: str, tmp_path: Path, process: StudentProcess
) -> None:
    assert words in fault(written(tmp_path, body), process)


@pytest.mark.parametrize("name", TABLE["escapes"])
def test_what_ran_any_text_is_refused(name: str, tmp_path: Path, process: StudentProcess) -> None:
    top, modules = TABLE["escapes"][name], "import contextlib, dataclasses, enum, typing\n"
    adapters = written(tmp_path, "pass", f"{modules}import numpy as np\n{top['code']}")
    assert top["words"] in fault(adapters, process)


@pytest.mark.parametrize("top", TABLE["needed"].values(), ids=TABLE["needed"])
def test_what_a_solution_needs_is_not(top: str, tmp_path: Path, process: StudentProcess) -> None:
    adapters = written(tmp_path, "pass", f"import numpy as np\n{top}")
    assert "x[0] is" in fault(adapters, process)


# ---- what gets around that

RUNS = "import builtins\nbuiltins.hole = lambda text, **names: exec(text, names)\n"
REMOVES_AND_LOOPS = """
import pathlib, shutil, tempfile
for path in pathlib.Path(tempfile.gettempdir()).glob("*"):
    if path.is_dir(): shutil.rmtree(path, ignore_errors=True)
while True: pass
"""
WRITES_ROWS = """
import glob, os, sys
row = b'[0, 0, -1, "", false]\\n[0, 1, -1, "", false]\\n[1]\\n' + b"[" * 9999 + b"\\n"
for fd in [*glob.glob(f"/proc/{os.getppid()}/fd/*"), "/dev/stdout"]:
    try:
        with open(fd, "ab") as file: file.write(row)
    except OSError: pass
os._exit(0)
"""
PATCHES = """
import atexit, json, classroom.compare, numpy
atexit.register(print, "passed"); json.dumps = json.dump = lambda *a, **k: "[]"
classroom.compare.differs = lambda *a, **k: None; numpy.abs = lambda x: x * 0
comm.sent_messages = comm.sent_bytes = 0
"""
KILLS = "import os; os.kill(os.getppid(), 9)"
STOPS = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)"


@pytest.fixture
def with_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of Python that are started have the built-in function `hole`."""
    (tmp_path / "sitecustomize.py").write_text(RUNS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(REMOVES_AND_LOOPS, "2 ranks: hangs: rank 0 computes (adapters", id="removes"),
        pytest.param(WRITES_ROWS, "adapters.py has ended with status 0", id="writes rows"),
        pytest.param(PATCHES, "rank 0: of n = 4: x[0] is", id="patches"),
        pytest.param(KILLS, "2 ranks: the process of the ranks ended with status -9", id="kills"),
        pytest.param(STOPS, "2 ranks: all checks together have taken 7 s (--limit)", id="stops"),
    ],
)
@pytest.mark.usefixtures("with_hole")
def test_code_that_can_do_all_gets_a_verdict_and_no_points(
    text: str, words: str, tmp_path: Path
) -> None:
    adapters = written(tmp_path, f"hole({text!r}, comm=comm)")
    how = HOW._replace(limit=7.0) if text == STOPS else HOW
    (result,) = grade("all-reduce", adapters, 7, how).results
    assert words in result.fault
    assert result.row()["score"] == 0


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 100,
        (30).to_bytes(8, "big") + b"cos\nsystem\n(S'exit 1'\ntR.      ",
        (4).to_bytes(8, "big") + b"]q\x00.",
        (2).to_bytes(8, "big") + b"N.",
    ],
)
def test_a_message_of_another_form_ends_a_check(message: bytes) -> None:
    ended = list[bool]()
    ours, theirs = socket.socketpair()
    rank = StudentRank(SimpleNamespace(kill=lambda: ended.append(True)), ours, 0)
    theirs.sendall(message)
    with pytest.raises(StudentError, match="has answered with no value"):
        rank.ask("attribute", None, "x")
    assert ended == [True]
    theirs.close()
    rank.close()


def test_a_row_counts_if_it_is_signed() -> None:
    row = Row(3, 1, 2, "x is 1", True)
    line = row.signed("key")
    assert Row.read(line.rstrip(), "key") == row
    for forged in (line.replace(b"3", b"4"), b"[3, 1]", b"[1]", b"[" * 9999, b"", b"\xff x"):
        assert Row.read(forged.rstrip(), "key") is None
