"""The schedule of docs/pipelines.md as it stands, and others named as package.module:NAME."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer, simulate
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.schedules.lists import step_list
from nnmpi.schedules.op import Kind, Op

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(from fractions.*?)^```", PAGE, re.S | re.M)[0]
OTHERS = """
def edited(edit):
    def compute(p, m, v):
        rows = passes(p, m, v)
        edit(rows, p, m)
        return rows
    return OLDEST_FIRST._replace(compute=compute)

def returning(compute):
    return OLDEST_FIRST._replace(compute=compute)

def only_6(p, m, v):
    if m != 6:
        raise ValueError(f"6 micro-batches, not {m}")
    return passes(p, m, v)

NUMBER = 3
UPDATES = OLDEST_FIRST._replace(update_each=True)
NO_STAGES = OLDEST_FIRST._replace(stages=None)
FAILS = returning(lambda p, m, v: [1 / 0])
EXITS = returning(lambda p, m, v: exit(3))
NO_FUNCTION = OLDEST_FIRST._replace(compute=[])
PLACE_FAILS = OLDEST_FIRST._replace(place=lambda p: (0, 1))
ON_NONE = OLDEST_FIRST._replace(place=lambda p, v: None)
ON_TEXT = OLDEST_FIRST._replace(place=lambda p, v: (*"0123"[:p],))
ON_ONE = OLDEST_FIRST._replace(place=lambda p, v: (0,) * p)
ELSEWHERE = OLDEST_FIRST._replace(place=lambda p, v: (*range(1, p), 0))
RETURNS_NONE = returning(lambda p, m, v: None)
GENERATOR = returning(lambda p, m, v: (row for row in passes(p, m, v)))
RANK_TOO_FEW = returning(lambda p, m, v: passes(p, m, v)[1:])
ROW_OF_NONE = edited(lambda rows, p, m: rows.__setitem__(1, None))
ITERATORS = returning(lambda p, m, v: [iter(row) for row in passes(p, m, v)])
EMPTY_ROW = edited(lambda rows, p, m: rows[1].clear())
NO_OP = edited(lambda rows, p, m: rows[0].__setitem__(0, (Kind.F, 0, 0)))
HALF = edited(lambda rows, p, m: rows[0].__setitem__(0, Op(Kind.F, 0.0, 0)))
TEXT_KIND = edited(lambda rows, p, m: rows[0].__setitem__(0, Op("F", 0, 0)))
NO_PASS = edited(lambda rows, p, m: rows[0].insert(1, Op(Kind.SEND_F, 0, 0)))
STAGE_TOO_HIGH = edited(lambda rows, p, m: rows[0].append(Op(Kind.F, 0, p)))
STAGE_BELOW = edited(lambda rows, p, m: rows[0].append(Op(Kind.F, 0, -1)))
MICRO_TOO_HIGH = edited(lambda rows, p, m: rows[0].append(Op(Kind.F, m, 0)))
F_MISSING = edited(lambda rows, p, m: rows[1].pop(0))
B_MISSING = edited(lambda rows, p, m: rows[0].pop())
F_TWICE = edited(lambda rows, p, m: rows[0].insert(0, rows[0][0]))
B_TWICE = edited(lambda rows, p, m: rows[1].append(rows[1][-1]))
B_FIRST = edited(lambda rows, p, m: rows[0].reverse())
I_WITHOUT_W = edited(lambda rows, p, m: rows[1].append(rows[1].pop()._replace(kind=Kind.I)))
W_WITHOUT_I = edited(lambda rows, p, m: rows[0].append(rows[0].pop()._replace(kind=Kind.W)))
DEADLOCK = edited(lambda rows, p, m: rows[0].sort(key=lambda op: op.micro))
OTHER_ORDER = edited(lambda rows, p, m: rows[-1].__setitem__(slice(m), rows[-1][m - 1 :: -1]))
ONLY_6 = returning(only_6)
BUBBLE_FAILS = OLDEST_FIRST._replace(bubble=lambda p, m, v: 1 / 0)
BUBBLE_OF_TEXT = OLDEST_FIRST._replace(bubble=lambda p, m, v: "x")
"""
KIND = "pipeline"
WHOLE = "in the passes F B or F I W; "
REFUSED = {
    "NUMBER": "must be a Schedule of nnmpi.schedules.pipeline, without update_each; it is of type",
    "UPDATES": "without update_each",
    "NO_STAGES": "must have an integer from 1 as its stages a rank, not None",
    "FAILS": "compute(p, m, v) ends with ZeroDivisionError: division by zero (",
    "EXITS": "compute(p, m, v) ends with SystemExit: 3",
    "NO_FUNCTION": "compute(p, m, v) ends with TypeError: 'list' object is not callable",
    "PLACE_FAILS": "place(p, v) ends with TypeError: <lambda>() takes 1 positional argument but 2",
    "ON_NONE": "rank of each of the {p} stages; it returned None",
    "ON_TEXT": "the rank of each of the {p} stages; it returned ('0', ",
    "ELSEWHERE": "rank 0 cannot run F0 of stage 0: the stages of this rank are {last}, the micro-",
    "RETURNS_NONE": "must return a list of {p} lists, the passes of each rank; it returned None",
    "GENERATOR": "a list of {p} lists, the passes of each rank; it returned <generator object",
    "RANK_TOO_FEW": "a list of {p} lists, the passes of each rank; it returned a list of length",
    "ROW_OF_NONE": "the passes of rank 1 must be a list of Op; they are None",
    "ITERATORS": "the passes of rank 0 must be a list of Op; they are <list_iterator object",
    "EMPTY_ROW": f"rank 1 must run micro-batch 0 through stage 1 {WHOLE}these are missing",
    "NO_OP": "pass 0 of rank 0 must be an Op(kind, micro-batch, stage) with two integers; it is (<",
    "HALF": "pass 0 of rank 0 must be an Op(kind, micro-batch, stage) with two integers; it is Op(",
    "TEXT_KIND": "pass 0 of rank 0 must have the kind Kind.F, Kind.B, Kind.I or Kind.W; it has 'F'",
    "NO_PASS": "pass 1 of rank 0 must have the kind Kind.F, Kind.B, Kind.I or Kind.W; it has <Kin",
    "STAGE_TOO_HIGH": "rank 0 cannot run F0 of stage {p}: the stages of this rank are 0, the micro",
    "STAGE_BELOW": "rank 0 cannot run F0 of stage -1: the stages of this rank are 0",
    "MICRO_TOO_HIGH": "rank 0 cannot run F4 of stage 0: the stages of this rank are 0, the micro-"
    "batches 0 to 3",
    "F_MISSING": f"rank 1 must run micro-batch 0 through stage 1 {WHOLE}it runs B",
    "B_MISSING": f"rank 0 must run micro-batch 3 through stage 0 {WHOLE}it runs F",
    "F_TWICE": f"rank 0 must run micro-batch 0 through stage 0 {WHOLE}it runs F F B",
    "B_TWICE": f"rank 1 must run micro-batch 3 through stage 1 {WHOLE}it runs F B B",
    "B_FIRST": f"rank 0 must run micro-batch 0 through stage 0 {WHOLE}it runs B F",
    "I_WITHOUT_W": f"rank 1 must run micro-batch 3 through stage 1 {WHOLE}it runs F I",
    "W_WITHOUT_I": f"rank 0 must run micro-batch 3 through stage 0 {WHOLE}it runs F W",
    "DEADLOCK": "4 micro-batches and 1 stages a rank: deadlock: ranks wait at B0.0 (pp 0, dp 0),",
    "OTHER_ORDER": "F at boundary {last}: sent are [0, 1, 2, 3], received [3, 2, 1, 0]; put the "
    "passes in another order",
    "ONLY_6": "compute(p, m, v) ends with ValueError: 6 micro-batches, not 4 (",
    "MISSING": "has no 'MISSING'",
}


@pytest.fixture(autouse=True)
def oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oldest.py").write_text(CODE)
    (tmp_path / "wrong.py").write_text(CODE.replace("range(m)", "range(1, m)"))
    (tmp_path / "my_schedules.py").write_text(CODE + OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))


def trained(schedule: str, pp: int = 2, micro_batches: int = 2) -> list[dict[str, Any]]:
    def fit(comm: Comm) -> dict[str, Any]:
        config = Config(
            model="mlp:4-8-8-8-3", data="iris", pp=pp, micro_batches=micro_batches,
            schedule=schedule, verify=True, steps=2,
        )  # fmt: skip
        with Trainer(config, comm=comm) as trainer:
            return trainer.fit(NullReport())

    return threads.run(pp, fit)


def test_it_trains_as_one_rank_would() -> None:
    assert trained("oldest:OLDEST_FIRST")[0]["event"] == "done"


def test_it_may_place_stages_in_another_order(tmp_path: Path) -> None:
    """The first stage is on the last rank."""
    placed = """
def backwards(p, m, v):
    return [[op._replace(stage=p - 1 - op.stage) for op in ops] for ops in passes(p, m, v)]

BACKWARDS = OLDEST_FIRST._replace(compute=backwards, place=lambda p, v: tuple(range(p))[::-1])
"""
    (tmp_path / "placed.py").write_text(CODE + placed)
    assert trained("placed:BACKWARDS")[0]["event"] == "done"


def test_its_lists_are_proved_before_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_list, "with_note", lambda ops: [Op(Kind.NOTE), *ops])
    with pytest.raises(ValueError, match="pp 0, operation 0, NOTE: comes twice, or a forward"):
        trained("oldest:OLDEST_FIRST")


def test_a_rank_without_a_stage_is_refused(simulator: Any) -> None:
    words = (
        "places stages on ranks 0, 0: it needs 2 stages, and at least one on each of ranks 0 to 1"
    )
    with refused("gpipe in the order of 1f1b", words):
        trained("my_schedules:ON_ONE")
    said = simulator("--schedule my_schedules:ON_ONE --stages 2 --micro-batches 2")
    assert (said.status, words in said.err) == (2, True)


def test_it_is_simulated_beside_its_formula(simulator: Any) -> None:
    size = "--stages 3 --micro-batches 4 --json"
    own = json.loads(simulator(f"--schedule oldest:OLDEST_FIRST {size}").out)
    gpipe = json.loads(simulator(f"--schedule gpipe {size}").out)
    assert (own["bubble"], own["formula"]) == (gpipe["bubble"], gpipe["formula"])


def test_the_page_shows_what_the_proof_says(simulator: Any) -> None:
    said = simulator("--schedule wrong:OLDEST_FIRST --stages 2 --micro-batches 2")
    assert (said.status, said.err.replace("wrong:", "oldest:") in PAGE) == (2, True)


NO_FORMULA = """
NONE = OLDEST_FIRST._replace(bubble=lambda p, m, v: None, formula="")
NAMED = NONE._replace(formula="(p-1)/m")
LIMITED = NAMED._replace(holds="where p divides m")
NUMBER = NAMED._replace(bubble=OLDEST_FIRST.bubble, formula="")
"""


@pytest.mark.parametrize(
    ("name", "line"),
    {
        "NONE": None,
        "NAMED": "formula   (p-1)/m",
        "LIMITED": "formula   (p-1)/m holds where p divides m",
        "NUMBER": "formula   = 0.5",
    }.items(),
)
def test_a_formula_is_shown_if_there_is_one(
    name: str, line: str | None, simulator: Any, tmp_path: Path
) -> None:
    (tmp_path / "formulas.py").write_text(CODE + NO_FORMULA)
    said = simulator(f"--schedule formulas:{name} --stages 2 --micro-batches 2")
    assert [x for x in said.out.splitlines() if x.startswith("formula ")] == [line] * bool(line)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_one_that_cannot_be_used_is_refused_by_its_name(
    name: str, words: str, pp: int, simulator: Any
) -> None:
    schedule, words = f"my_schedules:{name}", words.format(p=pp, last=pp - 1)
    with refused(f"schedule '{schedule}'", words):
        trained(schedule, pp, 4)
    said = simulator(f"--schedule {schedule} --stages {pp} --micro-batches 4")
    assert (said.status, words in said.err, said.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "BUBBLE_FAILS": "bubble(p, m, v) ends with ZeroDivisionError: division by zero (",
        "BUBBLE_OF_TEXT": "must return a Fraction, or None without a formula; it returned 'x'",
    }.items(),
)
def test_a_formula_that_fails_is_refused(name: str, words: str, simulator: Any) -> None:
    said = simulator(f"--schedule my_schedules:{name} --stages 2 --micro-batches 4")
    assert (said.status, said.err.count("\n"), words in said.err) == (2, 1, True)
    assert f"schedule 'my_schedules:{name}' of 2 ranks, 4 micro-batches and 1 stages" in said.err


def test_one_is_only_asked_for_the_micro_batches_of_the_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A shorter step or a fuller pipeline, which nnmpi asks of its own schedules, it may refuse."""
    assert trained("my_schedules:ONLY_6", 2, 6)[0]["event"] == "done"
    layout = (
        "layout --ranks 2 --pp 2 --model iris-mlp --data iris --batch-size 60 --micro-batches 6"
    )
    for machine in ([], ["--machine", "a100-80g:2"]):  # with one, a plan's stages
        options = [*layout.split(), "--schedule", "my_schedules:ONLY_6", *machine]
        assert simulate.main(options) == 0, capsys.readouterr().err
