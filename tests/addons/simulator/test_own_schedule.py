"""The schedule of docs/pipelines.md as it stands, and others named as package.module:NAME."""

import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.training.on_paper import arranged

from nnmpi import Config, Trainer, simulate
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.schedules.lists import step_list
from nnmpi.schedules.lists.of_user import Checked
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(from fractions.*?)^```", PAGE, re.S | re.M)[0]
REFUSED = tomllib.loads(Path(__file__).with_name("own_schedules.toml").read_text(encoding="utf-8"))
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

ON_ONE = OLDEST_FIRST._replace(place=lambda p, v: (0,) * p)
BUBBLE_FAILS = OLDEST_FIRST._replace(bubble=lambda p, m, v: 1 / 0)
BUBBLE_OF_TEXT = OLDEST_FIRST._replace(bubble=lambda p, m, v: "x")
"""
OTHERS += "".join(f"{name} = {row['code']}\n" for name, row in REFUSED.items() if "code" in row)
KIND = "pipeline"


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


def test_it_may_be_defined_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a schedule is kept for its functions, not for its name."""
    module = ModuleType("defined_anew")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def kept(schedule: str) -> int:
        monkeypatch.setattr(module, "MINE", SCHEDULES[schedule]._replace(about="mine"), False)
        options = {"pp": 2, "micro_batches": 6, "schedule": "defined_anew:MINE"}
        model = "mlp:64-48-40-32-24-10"
        return activations(arranged(Cluster.on_paper(2), model=model, **options), 0, 24)

    assert kept("gpipe") > kept("1f1b")


def test_its_places_may_be_truth_values() -> None:
    truths = Checked("truths", SCHEDULES["1f1b"]._replace(place=lambda p, v: (False, True)))
    assert list(map(type, truths.place(2, 1))) == [int, int]


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
@pytest.mark.parametrize("name", REFUSED)
def test_one_that_cannot_be_used_is_refused_by_its_name(name: str, pp: int, simulator: Any) -> None:
    schedule, words = f"my_schedules:{name}", REFUSED[name]["says"].format(p=pp, last=pp - 1)
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
