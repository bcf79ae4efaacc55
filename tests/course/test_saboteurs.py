"""Submissions that try to get points, or to hold up a grader, otherwise than by being right.

What adapters.py may not read is refused. A student's code that gets around this, here by a function
`hole` that runs any text, ends with a verdict and without points all the same.
"""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from classroom.check import COURSE
from classroom.grading import How, grade
from classroom.remote import StudentError, StudentProcess, StudentRank
from classroom.worker import Job, Row, Worker

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


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import contextlib; contextlib.os.getpid()", "contextlib.os is refused"),
        ("from contextlib import os", "contextlib.os is refused"),
        ("import typing as t; t.sys.modules", "typing.sys is refused"),
        ("import dataclasses as d; getattr(d, 'sys')", "dataclasses.sys is refused"),
        ("import enum; enum.bltns.open", "enum.bltns is refused"),
        ("np.ctypeslib.as_array(x)", "numpy.ctypeslib is refused"),
        ("from numpy import testing", "numpy.testing is refused"),
        ("import numpy._core", "import of numpy._core is refused"),
        ("np.load('x', allow_pickle=True)", "numpy.load is refused"),
        (
            "np.lib.format.read_array(x, allow_pickle=True)",
            "numpy.lib.format.read_array is refused",
        ),
        ("globals()['__builtins__']['__loader__'].load_module('posix')", "KeyError: '__loader__'"),
        ("x.tofile('x')", "reads x.tofile, which is private"),
        ("import dataclasses as d; d.make_dataclass('A', ['a'])", "make_dataclass is refused"),
        ("from functools import singledispatch", "functools.singledispatch is refused"),
        ("from functools import update_wrapper", "functools.update_wrapper is refused"),
        ("from functools import wraps", "functools.wraps is refused"),
        ("from enum import global_enum", "enum.global_enum is refused"),
        ("vars(type)['__subclasses__'](object)", "vars is refused"),
        ("np.test(extra_argv=['x'])", "numpy.test is refused"),
        ("import operator as o; o.attrgetter('__globals__')", "operator.attrgetter is refused"),
        ("import typing as t; t.get_type_hints(np)", "typing.get_type_hints is refused"),
        ("getattr(np, '_mod' + 'ule')", "getattr of _module is refused"),
        ("getattr(np.mean, '__glo' + 'bals__')", "getattr of __globals__ is refused"),
        ("(lambda self: self.__globals__)(np.mean)", "reads self.__globals__, which is private"),
        ("A = type('A', (), {}); A._prev = comm; A._prev", "reads A._prev, which is private"),
        ("(x for x in x).gi_frame", "gi_frame, which is private"),
        ("match x:\n        case object(__class__=c, __dict__=d): d", "reads __dict__, which is"),
        ("__builtins__['eval']", "reads __builtins__, which is private"),
        ("__import__('os')", "reads __import__, which is private"),
        ("eval('1')", "eval is refused"),
        ("exec('1')", "exec is refused"),
        ("open('x')", "open is refused"),
        ("import json", "import of json is refused"),
        ("x = " + "-" * 10**5 + "1", "cannot be loaded: it is nested too deeply for Python"),
        ("x = " + "(" * 999 + "1" + ")" * 999, "cannot be loaded: too many nested parentheses"),
        ("x = '\0'", "cannot be loaded: source code string cannot contain null bytes"),
    ],
)
def test_what_leads_elsewhere_or_too_deep_is_refused(
    body: str, words: str, tmp_path: Path, process: StudentProcess
) -> None:
    assert words in fault(written(tmp_path, body), process)


ESCAPES = {
    "a dataclass of another module": (
        "class A:\n    __module__ = 'os'\n    a: int\ndataclasses.dataclass(A)",
        "reads __module__, which is private",
    ),
    "a dataclass of another module, by type": (
        "A = type('A', (), {'__mod' + 'ule__': 'os'})\ndataclasses.dataclass(A)",
        "dataclass of a class of another module",
    ),
    "annotations that are code": (
        "class A:\n    __annotations__ = {'__class__, getpid()': int}\n"
        "dataclasses.dataclass(init=False)(A)",
        "reads __annotations__, which is private",
    ),
    "annotations that are code, by type": (
        "A = type('A', (), {'__anno' + 'tations__': {'x.__globals__, x': int}})\n"
        "dataclasses.dataclass(init=False, repr=False)(A)",
        "a field of a dataclass that reads __globals__ is refused",
    ),
    "a field that is code": (
        "@dataclasses.dataclass\nclass A:\n    a: int = 0\n"
        "dataclasses.fields(A)[0].name = 'x.__globals__, x'\n"
        "@dataclasses.dataclass(init=False, repr=False)\nclass B(A):\n    b: int = 1",
        "a field of a dataclass that reads __globals__ is refused",
    ),
    "an annotation that is run": (
        "class A:\n    def _evaluate(self): ...\n"
        "typing.get_args(typing.List['x.__globals__'])[0]._evaluate({}, {}, frozenset())",
        "._evaluate, which is private",
    ),
    "attributes of sys": (
        "class A(contextlib.redirect_stdout):\n    _stream = 'modules'",
        "contextlib.redirect_stdout is refused",
    ),
    "members from a module": (
        "class A:\n    def _convert_(self): ...\nenum.Enum._convert_('E', 'os', bool)",
        "reads enum.Enum._convert_, which is private",
    ),
    "a pattern by place": (
        "class M(type):\n    def __instancecheck__(self, x): return True\n"
        "A = M('A', (), {'__match' + '_args__': ('__glo' + 'bals__',)})\n"
        "match x:\n    case A(g): ...",
        "reads attributes of A by place",
    ),
    "other names in code": (
        "(x.a for x in []).gi_code.replace(co_names=('__globals__',))",
        "gi_code, which is private",
    ),
}
"""What ran any text, each by a module that adapters may import."""


@pytest.mark.parametrize(("top", "words"), ESCAPES.values(), ids=ESCAPES)
def test_what_ran_any_text_is_refused(
    top: str, words: str, tmp_path: Path, process: StudentProcess
) -> None:
    modules = "import contextlib, dataclasses, enum, typing\nimport numpy as np\n"
    assert words in fault(written(tmp_path, "pass", modules + top), process)


@pytest.mark.parametrize(
    "top",
    [
        "from dataclasses import *\n@dataclass(frozen=True, order=True, slots=True)\nclass A:\n"
        "    _a: int\n    b: list = field(default_factory=list)\na = A(1, [2])\n"
        "assert a == A(1, [2]) and a < A(2) and repr(replace(a, b=[])) == 'A(_a=1, b=[])'\n"
        "match a:\n    case A(b=[2]): assert fields(a)",
        "import numpy.linalg as la\nassert la.norm(np.ones(4)) == 2 == np.linalg.norm(np.ones(4))",
        "from numpy.random import default_rng\nassert np.random.default_rng(1).random() < 1",
        "from collections.abc import Callable\nfrom functools import *\nassert reduce and partial",
        "from dataclasses import dataclass, replace\n@dataclass(frozen=True)\nclass A:\n    _a: int"
        "\n    def b(self):\n        return self._a + self._a\nassert A(2).b() == 4",
        "class A:\n    def __init__(self):\n        self._prev = ()\n    def _vjp(self):\n"
        "        return 2\na = A()\na._prev = (a,)\nassert a._prev[0]._vjp() == 2",
        "assert np.ones(3).mean() == 1 and np.ones((2, 2)).sum(axis=0).std() == 0",
    ],
)
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
