"""benchmarks/gpu_minutes.py: rows of all cases, whatever happens to its processes."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.benchfiles import BENCHMARKS
from helpers.device import needs_emulator
from helpers.mpijob import ROOT, environment
from helpers.programs import python

MODULE = ("-m", "helpers.gpu_sections")
MINUTES = (str(BENCHMARKS / "gpu_minutes.py"),)


@pytest.fixture(autouse=True)
def _programs_find_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows that were written to their end."""
    path = out / "rows.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def measured(out: Path) -> list[tuple[str, str]]:
    return [(row["section"], row["case"]) for row in rows(out) if row["section"] != "plan"]


def planned(out: Path) -> set[tuple[str, str]]:
    plans = (row for row in rows(out) if row["section"] == "plan")
    return {(plan["case"], case) for plan in plans for case in plan["more"]["cases"]}


def killed(out: Path, count: int, *arguments: str) -> None:
    """Starts a run, and kills its first process behind so many measured cases."""
    with subprocess.Popen([sys.executable, *arguments], env=environment({}), cwd=ROOT) as started:
        end = time.monotonic() + 60
        while len(measured(out)) < count and time.monotonic() < end:
            time.sleep(0.005)
        os.kill(started.pid, signal.SIGKILL)
    time.sleep(0.05)  # its child ends with it
    assert count <= len(measured(out)) < len(planned(out))
    with (out / "rows.jsonl").open("ab") as file:
        file.write(b'{"section": "cut')


def is_whole(out: Path, done: Any) -> None:
    assert done.status == 0, done.err + done.out
    assert len(measured(out)) == len({*measured(out)})
    assert {*measured(out)} == planned(out)


def test_a_run_that_was_killed_goes_on_where_it_ended(tmp_path: Path) -> None:
    arguments = (*MODULE, str(tmp_path), "--emulated", "--only", "slow")
    killed(tmp_path, 3, *arguments)
    before = measured(tmp_path)
    is_whole(tmp_path, python(*arguments, folder=ROOT))
    assert measured(tmp_path)[: len(before)] == before
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert report.startswith("**A rehearsal on the emulated device: no time")
    assert "| case 19 | 19 | us |  |" in report
    assert "Did not fit" not in report


def test_what_crashes_hangs_or_fails_is_a_row_and_the_others_are_measured(tmp_path: Path) -> None:
    done = python(*MODULE, tmp_path, "--emulated", "--only", "ill", folder=ROOT)
    assert done.status == 1, done.err
    found = {row["case"]: row for row in rows(tmp_path) if row["section"] == "ill"}
    assert {case: row["unit"] for case, row in found.items()} == {
        "first": "us",
        "crash": "error",
        "hang": "error",
        "failure": "error",
        "library": "left out",
        "last": "us",
    }
    why = {case: row["more"].get("why", "") for case, row in found.items()}
    assert why["crash"] == "ended with -11: Fatal Python error: Segmentation fault"
    assert why["hang"] == "ended with 1: Timeout (0:00:00.500000)!"
    assert why["failure"] == "ended with 1: ValueError: no such number: 7"
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(text in report for text in why.values())


def test_what_does_not_fit_into_the_time_is_named_and_measured_later(tmp_path: Path) -> None:
    arguments = (*MODULE, str(tmp_path), "--emulated", "--only", "slow")
    assert python(*arguments, "--seconds", "0", folder=ROOT).status == 0
    assert not measured(tmp_path)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| slow | 20 | case 0; case 1;" in report
    is_whole(tmp_path, python(*arguments, folder=ROOT))


def test_rows_of_a_gpu_and_of_an_emulated_one_are_not_mixed(tmp_path: Path) -> None:
    row = {"section": "slow", "case": "case 0", "figure": 1.0, "unit": "us", "more": {}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"emulated": False}) + "\n")
    done = python(*MODULE, tmp_path, "--emulated", folder=ROOT)
    assert done.status == 2
    assert "has rows of a real GPU" in done.err


@needs_emulator
def test_a_rehearsal_that_is_killed_is_completed(tmp_path: Path) -> None:
    names = ("machine", "host", "kernels", "plans of cuDNN")
    arguments = (*MINUTES, str(tmp_path), "--warm", "--only", *names)
    out = tmp_path / "rehearsal"
    killed(out, 5, *arguments)
    is_whole(out, python(*arguments, folder=ROOT))
    cubins = [*(tmp_path / "kernels").glob("*.cubin")]
    assert len(cubins) > 10
    assert all(path.read_bytes().startswith((b"\x7fELF", b"\x93CUPY")) for path in cubins)


CACHE = """
import sys
from pathlib import Path

sys.path.insert(0, "benchmarks")
from lib.gpu.device import Device

Device(emulated=True).set_up(is_null=True)
from cupy.cuda import compiler, function
from lib.gpu import kernel_cache

TEXT = "template<typename T> __global__ void one(T* y) { y[0] = 1; }"
folder, loaded = Path(sys.argv[1]), []


class Module(function.Module):
    def load(self, cubin):
        loaded.append(cubin)


def compiled(folder_of_headers):
    options, names = ("--std=c++17", f"-I{folder_of_headers}"), ("one<int>", "one<float>")
    return compiler._compile_module_with_cache(TEXT, options, name_expressions=names)


compiler._get_arch = lambda: "90"
kernel_cache.make(folder)
wanted = dict(compiled("/a").mapping)
function.Module = Module
kernel_cache.use(folder)
module = compiled("/b")
assert dict(module.mapping) == wanted
assert [c[:4] for c in loaded] == [b"\x7fELF"], loaded
print(*(path.name for path in folder.iterdir()))
"""


@needs_emulator
def test_a_kernel_that_was_compiled_before_is_loaded_wherever_headers_lie(tmp_path: Path) -> None:
    done = python("-c", CACHE, tmp_path, folder=ROOT)
    assert done.status == 0, done.err
    assert len(done.out.split()) == 1


def decided() -> list[str]:
    """The tests that only a GPU decides, and all files of tests of a GPU."""
    code = "from lib.gpu import device_tests as d; print(*d.FILES, *sum(d.DECIDED.values(), ()))"
    return python("-c", code, PYTHONPATH=f"{BENCHMARKS}:{ROOT}").out.split()


def test_each_test_that_a_gpu_decides_exists() -> None:
    ids = decided()
    assert len(ids) > 50
    for each in ids:
        name, _, test = each.partition("::")
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not test or test in tests, each
        marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
        marks += map(ast.unparse, tests[test].decorator_list if test else [])
        assert not any("needs_emulator" in mark for mark in marks), f"{each} is skipped on a GPU"
