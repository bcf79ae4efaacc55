"""The command nnmpi.simulate: output, refusals, and docs/collectives.md, which shows its output."""

import ast
import json
import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.commands import Completed

from nnmpi import simulate
from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Link, Network
from nnmpi.collectives.verify import ALL_GATHER
from nnmpi.drawing.rounds_svg import as_svg
from nnmpi.drawing.rounds_text import LEGEND, MAX_RANKS, draw
from nnmpi.drawing.svg import INK
from nnmpi.drawing.tables import duration
from nnmpi.sim import collective
from nnmpi.sim.collective import OPERATIONS
from nnmpi.sim.commands.collective import size
from nnmpi.sim.network import Record

KIND = "collective"

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "collectives.md").read_text(encoding="utf-8")
RING = "--algorithm ring --ranks 4 --bytes 1MB"


# ---- one algorithm, all of them


def test_the_report_where_ranks_differ_and_the_textbook_leaves_something_out(
    simulator: Any,
) -> None:
    result = simulator("--algorithm ps --ranks 5 --bytes 1e6 --gamma 1e-10")
    assert "sent      4 MB at most, 1.6 MB on average, 1 MB at least\n" in result.out
    assert "messages  4 at most, 1.6 on average, 1 at least\n" in result.out
    assert "textbook  2a + 2(p-1)Mb = 810 us\n" in result.out
    assert "          +30 us  2(p-2)a: the server" in result.out
    assert "          +400 us  (p-1)Mg: additions" in result.out


@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_algorithms_are_in_one_table(simulator: Any, operation: str) -> None:
    result = simulator(f"--operation {operation} --ranks 6 --bytes 1MB")
    lines = result.out.splitlines()
    assert lines[0] == f"{operation}: 6 ranks, 1 MB"
    rows = [line.split() for line in lines[3:]]
    assert [row[0] for row in rows] == list(OPERATIONS[operation].algorithms)
    ratios = [float(row[3]) for row in rows]
    assert min(ratios) == 1.0
    assert (
        result.out
        == simulator(f"--operation {operation} --ranks 6 --bytes 1MB --algorithm all").out
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_json_is_the_record_of_each_outcome(simulator: Any, operation: str) -> None:
    result = simulator(f"--operation {operation} --ranks 6 --bytes 1MB --gamma 1e-11 --json")
    rows = json.loads(result.out)
    on = Network(Link(5e-6, 1e-10), 1e-11)
    for row, name in zip(rows, OPERATIONS[operation].algorithms, strict=True):
        o = collective.simulate(operation, name, 6, 1e6, on)
        assert row == o
        assert (row["operation"], row["algorithm"]) == (operation, name)
        assert (row["ranks"], row["bytes"], row["rounds"]) == (6, 1e6, o["rounds"])
        assert row["seconds"] > 0
        assert [*row["sent"]] == ["least", "mean", "most"]
        assert row["sent"]["least"] <= row["sent"]["most"]
        assert row["plan"]["seconds"] == pytest.approx(row["seconds"], rel=1e-9)


def test_json_of_one_algorithm_is_one_object(simulator: Any) -> None:
    row = json.loads(simulator(f"{RING} --json").out)
    assert row["algorithm"] == "ring"
    assert row["messages"] == {"least": 6, "mean": 6.0, "most": 6}
    assert row["textbook"]["formula"] == "2(p-1)a + 2(p-1)/p Mb"
    assert row["inner_alpha"] is None


def test_two_levels(simulator: Any) -> None:
    network = "--per-node 4 --inner-alpha 1e-6 --inner-beta 1e-11"
    one = simulator(f"--algorithm hierarchical --ranks 16 --bytes 1MB {network}")
    assert "gamma 0 s/B; in nodes of 4: alpha 1e-06 s, beta 1e-11 s/B\n" in one.out
    assert "rounds    10\n" in one.out  # 2 up, 6 around four leaders, 2 down
    assert "our plan  2ha' + hM(2b'+g) + 2(n-1)a + (n-1)/n M(2b+g)" in one.out
    ring = simulator(f"--algorithm ring --ranks 16 --bytes 1MB {network} --json")
    row = json.loads(ring.out)
    assert (row["per_node"], row["inner_alpha"], row["inner_beta"]) == (4, 1e-6, 1e-11)
    assert (row["textbook"], row["plan"], row["differences"]) == (None, None, [])
    assert "textbook" not in simulator(f"{RING} {network}").out


def test_on_one_rank_every_algorithm_takes_no_time(simulator: Any) -> None:
    result = simulator("--ranks 1 --bytes 0")
    assert result.status == 0
    assert [line.split()[1:4] for line in result.out.splitlines()[3:]] == [["0", "s", "1.00"]] * 8


# ---- drawings


def test_the_drawing_follows_the_report(simulator: Any) -> None:
    result = simulator(f"{RING} --draw")
    figures = simulator(RING).out
    picture = draw(ALGORITHMS["ring"], 4)
    assert result.out == f"{figures}\n{picture}\n\n{LEGEND}\n"


def test_the_drawing_of_an_all_gather_starts_with_one_chunk_per_rank() -> None:
    assert draw(OPERATIONS["all-gather"].algorithms["ring"], 3, ALL_GATHER).splitlines() == [
        "round  rank 0  rank 1  rank 2",
        "start  1..     .1.     ..1",
        "0      0>2 =1  1>0 =2  2>1 =0",
        "       11.     .11     1.1",
        "1      1>2 =2  2>0 =0  0>1 =1",
        "       111     111     111",
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("p", range(1, MAX_RANKS + 1))
def test_a_drawing_has_one_column_per_rank_and_two_lines_per_round(operation: str, p: int) -> None:
    o = OPERATIONS[operation]
    for name, plan in o.algorithms.items():
        if name == "p2p-whole":
            continue
        picture = draw(plan, p, o.claim)
        lines = [line for line in picture.splitlines() if not line.startswith("--")]
        assert len(lines) == 2 + 2 * plan.rounds(p)
        assert p > 8 or max(map(len, lines)) <= 120
        if operation in ("all-reduce", "all-gather", "broadcast") and p > 1:
            full = digit(p if operation == "all-reduce" else 1) * plan.chunks(p)
            assert lines[-1].split() == [full] * p


def digit(parts: int) -> str:
    return ".123456789abcdefg"[parts]


def test_a_picture_has_an_arrow_for_each_message_and_a_number_for_each_chunk(
    simulator: Any, tmp_path: Path
) -> None:
    file = tmp_path / "ring.svg"
    assert simulator(f"{RING} --svg {file}") == simulator(RING)
    root = ElementTree.parse(file).getroot()
    words = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert words[0] == "all-reduce by ring on 4 ranks"
    boxes = 7 * 4 * 4  # at the start and after 6 rounds
    heads = [e for e in root.iter() if e.tag.endswith("path") and e.get("fill") is not None]
    assert len(heads) == 6 * 4
    assert sum(word in ("0", "1", "2", "3", "4") for word in words) == boxes + len(heads)
    assert words[-16:] == ["4"] * 16


def test_words_of_a_picture_are_within_it_and_differ_from_their_boxes() -> None:
    for ranks in (1, 7):  # of 7 ranks the last round is 11
        root = ElementTree.fromstring(as_svg(ALGORITHMS["ring"], ranks, ""))
        words = [e for e in root.iter() if e.tag.endswith("text") and e.text]
        for e in (e for e in words if e.get("text-anchor") == "end"):
            width = 0.62 * float(e.get("font-size", "")) * len(e.text or "")
            assert float(e.get("x", "")) - width >= 0
        last = words[-1]
        assert (last.text, last.get("fill")) == (f"{ranks}", "#ffffff" if ranks > 1 else INK)


# ---- sizes and units


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("100e6", 1e8),
        ("12", 12),
        ("12B", 12),
        ("64KB", 64_000),
        ("64 kb", 64_000),
        ("64KiB", 65_536),
        ("8MB", 8e6),
        ("1.5GB", 1.5e9),
        ("1GiB", 2**30),
        ("2TiB", 2**41),
        ("1e3kB", 1e6),
    ],
)
def test_sizes(text: str, nbytes: float) -> None:
    assert size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "eight", "1PB", "1 2", "1e", "8MBs"])
def test_malformed_sizes_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a size: write it as 100e6, 64KB or 1GiB"):
        size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2e-9, "2 ns"),
        (1e-6, "1 us"),
        (9.9960e-4, "1,000 us"),
        (1e-3, "1 ms"),
        (0.0302, "30.2 ms"),
        (1.0, "1 s"),
        (12345.6, "12,346 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---- what is refused

WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "no ranks": ("--bytes 1", ("required", "--ranks")),
    "no bytes": ("--ranks 4", ("required", "--bytes")),
    "0 ranks": ("--ranks 0 --bytes 1", ("ranks 0", "from 1 to 10000000")),
    "ranks below 0": ("--ranks -4 --bytes 1", ("ranks -4", "from 1")),
    "too many ranks": (f"--ranks {10**30} --bytes 1", ("ranks 1000", "to 10000000")),
    "half a rank": ("--ranks 1.5 --bytes 1", ("--ranks", "'1.5'")),
    "bytes below 0": ("--ranks 4 --bytes=-1", ("bytes -1.0", "from 0 to 1e+30")),
    "bytes NaN": ("--ranks 4 --bytes nan", ("bytes nan", "from 0")),
    "bytes without end": ("--ranks 4 --bytes inf", ("bytes inf", "to 1e+30")),
    "bytes in words": ("--ranks 4 --bytes many", ("--bytes", "'many' is not a size")),
    "alpha": (f"{RING} --alpha=-5e-6", ("alpha -5e-06", "from 0")),
    "beta": (f"{RING} --beta nan", ("beta nan", "from 0")),
    "gamma": (f"{RING} --gamma inf", ("gamma inf", "from 0")),
    "alpha in words": (f"{RING} --alpha slow", ("--alpha", "'slow'")),
    "algorithm": ("--ranks 4 --bytes 1 --algorithm rng", ("p2p-whole",)),
    "algorithm of another operation": (
        "--ranks 4 --bytes 1 --operation reduce --algorithm ring",
        ("'ring' of reduce", "tree, ps"),
    ),
    "operation": ("--ranks 4 --bytes 1 --operation scan", ("'scan'", "all-gather")),
    "half a network": (f"{RING} --per-node 2", ("inner-alpha", "None", "leave out all three")),
    "no nodes": (f"{RING} --inner-alpha 0 --inner-beta 0", ("per-node", "leave out all three")),
    "empty nodes": (f"{RING} --per-node 0 --inner-alpha 0 --inner-beta 0", ("from 1",)),
    "inner alpha": (f"{RING} --per-node 2 --inner-alpha nan --inner-beta 0", ("from 0",)),
    "inner beta": (f"{RING} --per-node 2 --inner-alpha 0 --inner-beta=-1", ("from 0",)),
    "a drawing too wide": (
        "--ranks 17 --bytes 1 --algorithm ring --draw",
        ("1 to 16 ranks, got 17", "leave out --draw"),
    ),
    "a picture of all": ("--ranks 4 --bytes 1 --svg x.svg", ("--svg", "one algorithm")),
    "a picture of a sweep": (f"{RING} --svg x.svg --sweep bytes", ("leave out --sweep",)),
    "a drawing of all": ("--ranks 4 --bytes 1 --draw", ("one algorithm", "ring|tree")),
    "a drawing in JSON": (f"{RING} --draw --json", ("--draw", "--json", "leave out one")),
    "a drawing of what does not work": (
        "--ranks 4 --bytes 1 --algorithm p2p-whole --draw",
        ("p2p-whole can be priced but not drawn", "round 2", "twice", "leave out --draw"),
    ),
    "flag": (f"{RING} --frobnicate", ("--frobnicate",)),
    "a misspelt flag": (f"{RING} --swep=bytes", ("--swep=bytes; did you mean --sweep?",)),
    "abbreviation": ("--rank 4 --bytes 1", ("--ranks",)),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_unusable_arguments_give_one_line(refused: Any, case: tuple[str, tuple[str, ...]]) -> None:
    refused(*case)


@pytest.mark.parametrize("arguments", [(), ("pipelines",)])
def test_the_kind_of_plan_is_required(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main(arguments) == 2
    assert re.fullmatch(r"nnmpi\.simulate: .*KIND.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            MemoryError("8 TiB"),
            2,
            "nnmpi.simulate: out of memory: 8 TiB; take fewer ranks, a smaller model, or samples "
            "with a shorter --context\n",
        ),
        (KeyboardInterrupt(), 130, "nnmpi.simulate: interrupted\n"),
    ],
)
def test_the_exit_status_when_a_simulation_is_interrupted(
    simulator: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    def fails(*_: object) -> Record:
        raise error

    monkeypatch.setattr(collective, "simulate", fails)
    assert simulator(RING) == Completed(status, "", line)


# ---- as a process

WITHOUT_MPI = """
import runpy, sys
sys.modules["mpi4py"] = None
runpy.run_module("nnmpi.simulate", run_name="__main__", alter_sys=True)
"""


def start(*arguments: str, **files: Any) -> "subprocess.Popen[str]":
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **files,
    )


def test_the_command_runs_without_mpi(simulator: Any) -> None:
    process = start(
        "-c", WITHOUT_MPI, "collective", *RING.split(), "--draw", stdout=subprocess.PIPE
    )
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert out == simulator(f"{RING} --draw").out


def test_a_closed_pipe_is_not_reported() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("-m", "nnmpi.simulate", "collective", *RING.split(), stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "w") as full:
        process = start("-m", "nnmpi.simulate", "collective", *RING.split(), stdout=full)
        _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert err == "nnmpi.simulate: cannot write output: No space left on device\n"


def test_the_simulator_imports_plans_and_nothing_else() -> None:
    rooms = {"nnmpi.collectives", "nnmpi.schedules", "nnmpi.sim", "nnmpi.drawing"}
    rooms |= {"nnmpi.quoting", "nnmpi.user_files"}
    files = [ROOT / "nnmpi" / "simulate.py", *(ROOT / "nnmpi" / "sim").rglob("*.py")]
    assert len(files) > 4
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "nnmpi":
                assert {a.name for a in node.names} <= {"cli", "user_code"}, path
            elif path.name == "simulate.py" and getattr(node, "module", None) == "nnmpi.run":
                assert [a.name for a in node.names] == ["dry_run"]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nnmpi"):
                assert ".".join((node.module or "").split(".")[:2]) in rooms, path
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("nnmpi")], path


# ---- the page


def test_the_table_of_the_page() -> None:
    on = Network(Link(5e-6, 1e-10))
    rows = []
    for operation, o in OPERATIONS.items():
        for name in o.algorithms:
            result = collective.simulate(operation, name, 6, 1e6, on)
            book, plan = result["textbook"], result["plan"]
            figures = ("-", "-")
            if book:
                figures = (f"`{book['formula']}`", duration(book["seconds"]))
            rows.append(
                f"| {operation} | `{name}` | {figures[0]} | `{plan['formula']}` | {figures[1]} | "
                f"{duration(result['seconds'])} |"
            )
    assert re.findall(r"^\| [a-z-]+ \| `.*$", PAGE, re.M) == rows


def test_the_page_gives_the_reason_of_each_difference() -> None:
    text = " ".join(PAGE.split())
    reasons = {
        why for o in OPERATIONS.values() for c in o.costs.values() for why in c.differences.values()
    }
    assert len(reasons) > 5
    assert [why for why in reasons if why not in text] == []


def test_the_page_describes_every_algorithm() -> None:
    names = {name for o in OPERATIONS.values() for name in o.algorithms}
    assert [name for name in names if f"**{name}" not in PAGE] == []
