"""What a step asks of a GPU (meter.toml) only becomes less, counted without one."""

import json
import re
from importlib.metadata import version
from typing import Any

import pytest
from helpers.device import needs_emulator
from helpers.kernels import step_meter
from helpers.kernels.step_meter import Figures, figures_of
from helpers.mpijob import ROOT
from helpers.programs import python

FOLDER = ROOT / "nnmpi" / "addons" / "cuda"
LARGE = ("R-1024", "Trainer gpt:12x12x768")
TABLE = step_meter.table()
SMALL = [case for case in TABLE if case not in (*LARGE, "cupy")]
COMMAND = "PYTHONPATH=$PWD:tests python -m helpers.kernels.step_meter --write"


def counted(*cases: str) -> dict[str, Any]:
    """The figures of cases, from a process of its own."""
    path = str(ROOT / "tests")
    meter = "-m", "helpers.kernels.step_meter"
    done = python(*meter, *cases, folder=ROOT, timeout=280, PYTHONPATH=path)
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@needs_emulator
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(SMALL, id="small"),
        *(pytest.param([case], id=case, marks=pytest.mark.long) for case in LARGE),
    ],
)
def test_no_figure_of_a_step_rises(cases: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        release = version("cupy-cuda12x")
    except ImportError:
        release = "of another CUDA"
    if release != TABLE["cupy"]:
        pytest.skip(f"the table is of CuPy {TABLE['cupy']}, and this one is {release}")
    found = counted(*cases)
    risen, fallen = (
        [f"{case}, {change}" for case in cases for change in changes(TABLE[case], found[case])[i]]
        for i in range(2)
    )
    if fallen:
        with capsys.disabled():
            print("", *fallen, f"lower the table: {COMMAND}", sep="\n")
    assert not risen, f"{risen}; to accept that: {COMMAND}"


def changes(known: Any, found: Any) -> tuple[list[str], list[str]]:
    """The figures that are more than in the table, and those that are less."""
    risen, fallen = list[str](), list[str]()
    for form, figures in known.items():
        if found[form].get("reason") != figures.get("reason"):
            reasons = f"{form}: {figures.get('reason')} -> {found[form].get('reason')}"
            (risen if "reason" in found[form] else fallen).append(reasons)
        for name in Figures._fields:
            if (value := found[form][name]) != figures[name]:
                change = f"{form} {name} {figures[name]} -> {value}"
                (risen if value > figures[name] else fallen).append(change)
    return risen, fallen


def test_figures_are_sums_over_calls_and_nodes() -> None:
    view = b"".join(n.to_bytes(8, "little") for n in (0, 2**24, 2**24, 4)).hex()
    calls = [
        ("kernel", f"cupy_add\t{view} {view} 0000803f\t"),
        ("copy", "host to device\t512"),
        ("wait", "stream"),
        ("graph", "2"),
        ("node", "kernel\tadam\t00\t1000 1000 1000 1000 0 0"),
        ("node", "library\tgemm\t512\t512\t4096\t1\t4\t4\t0\t0"),
    ]
    bytes_of = {"add": 2 * 4 * 2**24, "adam": 7000, "gemm": 4 * (2 * 512 * 4096 + 512**2)}
    operations = 2 * 512 * 512 * 4096
    assert figures_of(calls) == Figures(
        calls=4,
        nodes=2,
        megabytes=round((sum(bytes_of.values()) + 512) / 1e6, 3),
        gflop=round(operations / 1e9, 3),
        microseconds=round(bytes_of["add"] / 4.8e6 + 2 + 2 + operations / 67e6, 1),
    )


def test_arrays_that_count_twice_are_parameters_that_kernels_write() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.cu"))
    for name, places in step_meter.TWICE.items():
        found = re.search(rf"(?:KERNEL|REDUCTION) {name}\(([^)]*)\)", text)
        assert found, name
        parameters = found[1].split(",")
        for place in places:
            assert "*" in parameters[place], (name, place)
            assert ("const" in parameters[place]) == (name == "moments"), (name, place)


def test_changes_of_figures_and_reasons_are_told_apart() -> None:
    few, many = Figures(1, 0, 1.0, 1.0, 4.0)._asdict(), Figures(2, 0, 1.0, 1.0, 3.9)._asdict()
    assert changes({"written": few}, {"written": few}) == ([], [])
    assert changes({"written": few}, {"written": many}) == (
        ["written calls 1 -> 2"],
        ["written microseconds 4.0 -> 3.9"],
    )
    lost = {**few, "reason": "the host waits"}
    told = "compiled: None -> the host waits"
    assert changes({"compiled": few}, {"compiled": lost}) == ([told], [])
    assert changes({"compiled": lost}, {"compiled": few})[1] == ["compiled: the host waits -> None"]
