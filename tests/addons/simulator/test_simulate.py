"""The command nnmpi.simulate: output, refusals, and docs/collectives.md, which shows its output."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.completion import completed, in_each_shell
from helpers.mpijob import ROOT
from helpers.programs import python

from nnmpi.addons.simulator import collective
from nnmpi.addons.simulator.collective import OPERATIONS
from nnmpi.addons.simulator.drawing.rounds import LEGEND, MAX_RANKS, draw
from nnmpi.collectives.algorithms import ALGORITHMS, Collective
from nnmpi.collectives.price import NEAR, Link, Network

KIND = "collective"

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
    assert "rounds    6\n" in one.out  # around four leaders, of which each sends for its node
    assert "our plan  2a' + M(2b'+(s-1)g) + 2(n-1)a + (n-1)/n M(2b+g)" in one.out
    ring = simulator(f"--algorithm ring --ranks 16 --bytes 1MB {network} --json")
    row = json.loads(ring.out)
    assert (row["per_node"], row["inner_alpha"], row["inner_beta"]) == (4, 1e-6, 1e-11)
    assert (row["textbook"], row["plan"], row["differences"]) == (None, None, [])
    assert "textbook" not in simulator(f"{RING} {network}").out
    typical = json.loads(simulator(f"{RING} --per-node 2 --json").out)
    assert (typical["inner_alpha"], typical["inner_beta"]) == NEAR


TEXTS = {  # options -> what the heading says
    "--network torus:4x4": "gamma 0 s/B; torus:4x4\n",
    "--network fat-tree:8:2": "gamma 0 s/B; fat-tree:8:2\n",
    "--network rails:8": "; rails:8; in nodes of 8: alpha 5e-06 s, beta 1e-10 s/B\n",
    "--network rails:4 --inner-beta 1e-11": "; in nodes of 4: alpha 5e-06 s, beta 1e-11 s/B\n",
}


@pytest.mark.parametrize("options", TEXTS)
def test_a_topology_is_named_in_the_heading(simulator: Any, options: str) -> None:
    assert TEXTS[options] in simulator(f"--ranks 16 --bytes 1MB {options}").out
    drawing = simulator(f"--ranks 16 --bytes 1MB --algorithm ring --draw {options}").out
    assert TEXTS[options] in drawing
    row = json.loads(simulator(f"--ranks 16 --bytes 1MB --algorithm ring --json {options}").out)
    assert row["network"] == options.split()[1]


def test_steps_of_a_round_are_numbered_by_port(simulator: Any) -> None:
    out = simulator("--algorithm bucket --ranks 2 --bytes 1MB --draw").out
    assert re.findall(r"^(\d\.\d)  ", out, re.M) == ["0.0", "0.1", "1.0", "1.1"]


def test_on_one_rank_every_algorithm_takes_no_time(simulator: Any) -> None:
    result = simulator("--ranks 1 --bytes 0")
    assert result.status == 0
    assert [line.split()[1:4] for line in result.out.splitlines()[3:]] == [
        ["0", "s", "1.00"]
    ] * len(collective.PRICED)


# ---- drawings


def test_the_drawing_follows_the_report(simulator: Any) -> None:
    result = simulator(f"{RING} --draw")
    figures = simulator(RING).out
    picture = draw(ALGORITHMS["ring"], 4)
    assert result.out == f"{figures}\n{picture}\n\n{LEGEND}\n"


def test_the_drawing_of_an_all_gather_starts_with_one_chunk_per_rank() -> None:
    assert draw(
        OPERATIONS["all-gather"].algorithms["ring"], 3, Collective.ALL_GATHER.claim
    ).splitlines() == [
        "round  rank 0  rank 1  rank 2",
        "start  1..     .1.     ..1",
        "0      0>1 =2  1>2 =0  2>0 =1",
        "       1.1     11.     .11",
        "1      2>1 =1  0>2 =2  1>0 =0",
        "       111     111     111",
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("p", [1, 2, 3, 7, 8, MAX_RANKS])
def test_a_drawing_has_one_column_per_rank_and_two_lines_per_round(operation: str, p: int) -> None:
    o = OPERATIONS[operation]
    for name, plan in o.algorithms.items():
        if name == "p2p-whole":
            continue
        picture = draw(plan, p, o.collective.claim)
        lines = [line for line in picture.splitlines() if not line.startswith("--")]
        assert len(lines) == 2 + 2 * plan.rounds(p)
        assert p > 8 or plan.chunks(p) > p or max(map(len, lines)) <= 120
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


def test_several_algorithms_are_drawn_one_below_the_other(simulator: Any, tmp_path: Path) -> None:
    file = tmp_path / "both.svg"
    both = "--algorithm tree,ring --ranks 4 --bytes 1MB"
    out = simulator(f"{both} --svg {file} --draw").out
    titles = [f"all-reduce by {name} on 4 ranks" for name in ("tree", "ring")]
    drawings = [f"{title}\n{draw(ALGORITHMS[title.split()[2]], 4)}" for title in titles]
    assert out == "\n\n".join([simulator(both).out.rstrip("\n"), *drawings, f"{LEGEND}\n"])
    root = ElementTree.parse(file).getroot()
    words = [e for e in root.iter() if e.tag.endswith("text")]
    drawn = [e for e in words if e.text in titles]
    assert [e.text for e in drawn] == titles
    below = [float(e.get("y", "")) for e in words if e.text in ("rank 0", "round 5")]
    heights = [float(e.get("y", "")) for e in drawn]
    assert heights[0] < below[0] < heights[1] < below[1] < below[2]
    assert below[2] < float(root.get("viewBox", "").split()[3])


# ---- as a process

WITHOUT_MPI = """
import runpy, sys
sys.modules["mpi4py"] = None
runpy.run_module("nnmpi.simulate", run_name="__main__", alter_sys=True)
"""


def test_the_command_runs_without_mpi(simulator: Any) -> None:
    done = python("-c", WITHOUT_MPI, "collective", *RING.split(), "--draw")
    assert (done.status, done.err) == (0, "")
    assert done.out == simulator(f"{RING} --draw").out


# ---- the page


def test_the_table_of_the_page_has_the_price_of_each_all_reduce() -> None:
    flat = Network(Link(5e-6, 1e-10))
    on = {"hierarchical": flat._replace(inner=Link(1e-6, 1e-10), per_node=3)}
    prices = [
        (
            name,
            collective.simulate("all-reduce", name, 6, 1e6, on.get(name, flat))["plan"]["formula"],
        )
        for name in OPERATIONS["all-reduce"].algorithms
    ]
    assert re.findall(r"^\| `([\w-]+)` \| [^|]+ \| `([^|]+)` \| [^|]+ \|$", PAGE, re.M) == prices


@in_each_shell
def test_completion_knows_kinds_and_their_options(shell: str) -> None:
    assert completed("nnmpi simulate coll", shell) == ["collective"]
    assert "--algorithm" in completed("nnmpi simulate collective --", shell)
