"""The command `nnmpi course`: what it writes, prints and never waits for."""

import json
from pathlib import Path

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python
from helpers.refusals import check, refused

from classroom.check import COURSE
from nnmpi.addons.course import command as course

EMPTY = (COURSE / "all-reduce" / "adapters.py").read_text(encoding="utf-8")
LINE = EMPTY[: EMPTY.index("raise NotImpl")].count("\n") + 1


def folder(tmp_path: Path, body: str = "") -> Path:
    """A folder of the assignment, whose `server_all_reduce` has this body."""
    assert course.main(["new", "all-reduce", str(tmp_path / "work")]) == 0
    text = EMPTY.replace("    raise NotImplementedError", f"    {body}", 1 if body else 0)
    (tmp_path / "work" / "adapters.py").write_text(text, encoding="utf-8")
    return tmp_path / "work"


def checked(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    capfd.readouterr()
    assert course.main(["check", *map(str, arguments)]) == 1
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return captured.out


def test_empty_adapters_get_no_points(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, report = folder(tmp_path), tmp_path / "results.json"
    monkeypatch.chdir(given)
    (given / "numpy.py").write_text("raise ImportError")  # which the grader must not import
    out = checked(capfd, given, "--json", "--gradescope", report, "--autolab")
    ours, autolab = map(json.loads, out.splitlines())
    assert (ours["assignment"], ours["student"], ours["score"]) == ("all-reduce", "work", 0)
    assert ours["seed"] == course.seed_of("work") != course.seed_of("other")
    assert {row["score"] for row in ours["checks"]} == {0} == {*autolab["scores"].values()}
    assert all("is not written yet" in row["output"] for row in ours["checks"])
    tests = json.loads(report.read_text())["tests"]
    assert [(t["name"], t["max_score"]) for t in tests] == [
        (row["name"], row["max_score"]) for row in ours["checks"]
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("while True: pass", "2 ranks: hangs: rank 0 computes (adapters.py, line LINE)"),
        ("comm.recv(x, 1 - comm.rank)", "waits in recv of 4 float64 from rank 1 (adapters.py"),
        ("comm.rank or comm.recv(x, 1)", "(adapters.py, line LINE); rank 1 waits in all_reduce"),
        (
            "1 / comm.rank",
            "rank 0: ZeroDivisionError: division by zero (adapters.py, line LINE, in",
        ),
        (
            "exit(comm.rank)",
            "2 ranks: rank 0: SystemExit: 0 (adapters.py, line LINE, in server_all_",
        ),
        (
            "np.lib.stride_tricks.as_strided(x, (9**9,), (8**7,))[...] = 1",
            "the process that runs adapters.py has ended with status -",
        ),
        ("import nnmpi.comm.thread_ranks", "import of nnmpi.comm.thread_ranks is refused"),
        ("comm._isend", "reads comm._isend, which is private"),
        (
            "return )",
            "0/5 points: adapters.py cannot be loaded: unmatched ')' (adapters.py, line LINE)",
        ),
    ],
)
def test_a_fault_is_named_and_not_waited_for(
    body: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    deadline = "3" if "while" in body else "60"
    how = ("--only", "server sums", "--ranks", "2", "--deadline", deadline)
    out = checked(capfd, folder(tmp_path, body), *how)
    assert words.replace("LINE", str(LINE)) in out
    assert "   0/5 points" in out


def test_a_syntax_error_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given, report = folder(tmp_path, "return )"), tmp_path / "results.json"
    out = checked(capfd, given, "--gradescope", report)
    assert [line[:9] for line in out.splitlines()] == ["all-reduc", "   0/100 "]
    assert out.count("cannot be loaded: unmatched ')'") == 1
    of_all = json.loads(report.read_text())
    assert "unmatched" in of_all["output"]
    assert {(t["score"], t["output"]) for t in of_all["tests"]} == {(0, "not run")}


def test_checks_that_are_left_when_the_time_is_up_get_no_points(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = checked(capfd, folder(tmp_path, "pass"), "--limit", "0.01", "--json")
    rows = json.loads(out)["checks"]
    over = "all checks together have taken 0.01 s (--limit)"
    first, *others = [row["output"] for row in rows]
    assert first in (f"1 rank: {over}", f"not run: {over}")  # this if the machine was busy
    assert others == [f"not run: {over}"] * 13
    assert {row["score"] for row in rows} == {0}


def test_whose_numbers_it_takes_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert course.main(["new", "all-reduce", "work"]) == 0
    assert "the numbers are those of student work (--student" in capfd.readouterr().out
    for command, default in (("new", "the name of DIR"), ("check", "student of DIR/course.json")):
        with pytest.raises(SystemExit):
            course.main([command, "--help"])
        assert default in " ".join(capfd.readouterr().out.split())


def test_a_result_names_the_ranks_on_which_a_check_has_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = folder(tmp_path, "pass")
    assert course.main(["check", str(given), "--only", "server sums", "--ranks", "1"]) == 0
    assert "5/5   server sums                  law     passed on 1 rank\n" in capfd.readouterr().out


@refused("course")
def test_what_cannot_be_done_is_one_line(
    said: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    check(course.main, said, words, capsys)


def test_an_installed_package_has_the_assignments_but_no_solutions(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    build = ("setup.py", "-q", "build_py", "--build-lib", lib)
    assert python(*build, folder=ROOT, NNMPI_BUILD="none").status == 0
    shipped = {path.name for path in (lib / "nnmpi" / "assignments").rglob("*") if path.is_file()}
    assert {"README.md", "adapters.py", "checks.py", "grading.py"} <= shipped
    assert not {"mutants.py", "all-reduce.py"} & shipped
    for arguments in (["new", "all-reduce", "work"], ["check", "work", "--only", "crossover"]):
        command = ("-P", "-m", "nnmpi", "course", *arguments)
        done = python(*command, folder=tmp_path, PYTHONPATH=str(lib))
    assert "crossover is not written yet" in done.out
