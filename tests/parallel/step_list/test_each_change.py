"""Of small layouts, each list with one change is refused, or computes the same on a machine that
shares no rule with the proof; and each rule of the proof refuses a list."""

import ast
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.step_lists import each_change, groups
from helpers.step_machine import WrongError, computed
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi import nn
from nnmpi.addons.checks import slice_list
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.schedules.lists import proof, race, walk
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import PASSES


def crossed() -> nn.Module:
    """Two weights that two stages have, in one order and in the other: sums of these start in
    another order on each stage."""
    a, b, c, d = (nn.Linear(64, 64, bias=False) for _ in range(4))
    c.weight, d.weight = b.weight, a.weight
    return nn.Sequential(nn.Flatten(), a, b, c, d, nn.Linear(64, 10))


SMALL: dict[str, Any] = {"model": "mlp:64-8-8-10", "micro_batches": 2, "bucket_mb": 0.0005}
CROSSED: dict[str, Any] = {"build": crossed, "cut": "3", "bucket_mb": 0.001, "pp": 2}
BASES = {"small": SMALL, "crossed": CROSSED}
FILE = Path(__file__).with_name("small_layouts.toml")
LAYOUTS = tomllib.loads(FILE.read_text(encoding="utf-8"))
Lists = list[list[StepList]]


def lists_of(name: str) -> Lists:
    row = dict(LAYOUTS[name])
    cluster, options = Cluster.on_paper(row.pop("ranks")), BASES[row.pop("of")] | row
    a = arranged(cluster, **{"given": digits, "allreduce": "ring", **options})
    return groups(a, 5 if name == "pipedream" else None)


def changed_lists(right: Lists) -> Iterator[tuple[str, Lists, bool]]:
    """With the change on one rank, or on all ranks along dp; and whether the schedule has it too,
    as that of a user may be wrong."""
    for place, row in enumerate(right):
        for how, ops in each_change(row[0].ops):
            if ops == row[0].ops:
                continue
            passes = tuple(op for op in ops if op.kind in PASSES)
            wrong = [replace(row[0], ops=ops)]
            if passes != row[0].passes and {*passes} <= {*row[0].passes}:
                wrong.append(replace(row[0], ops=ops, passes=passes))
            for step in wrong:
                for count in sorted({1, len(row)}):
                    new = [step] * count + row[count:]
                    lists = [new if p == place else others for p, others in enumerate(right)]
                    where = f"pp {place}, {count} of {len(row)} ranks"
                    yield f"{where}: {how}", lists, step.passes != row[0].passes


@cache
def refusals(name: str) -> Counter[str]:
    """How often each text refuses a list. The others compute what the right ones do; if they have
    another schedule, at least without a race."""
    right, said = lists_of(name), Counter[str]()
    prove(right)
    wanted = computed(right)
    for how, lists, is_other in changed_lists(right):
        try:
            prove(lists)
        except ScheduleError as error:
            said[str(error)] += 1
            continue
        try:
            found = computed(lists)
        except WrongError as wrong:
            raise AssertionError(how) from wrong
        assert is_other or found == wanted, how
        said[""] += 1
    return said


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_change_is_refused_or_computes_the_same(name: str) -> None:
    said = refusals(name)
    print(f"{said.total():,} lists, {said['']:,} let through")
    assert 0 < said[""] < said.total() / 3


def texts() -> Iterator[str]:
    """A pattern for each text that a rule returns or raises, with a gap for each value."""
    for module in (walk, race, proof, slice_list):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            said = node.value if isinstance(node, ast.Return) else None
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                said = node.exc.args[0]
            parts = said.values if isinstance(said, ast.JoinedStr) else [said]
            text = [part.value if isinstance(part, ast.Constant) else ".*" for part in parts]
            if said is not None and all(isinstance(part, str) for part in text) and any(text):
                yield "".join(text)


def test_each_rule_refuses_a_list() -> None:
    left = {text for text in texts() if text != ".*"}
    assert len(left) > 30
    for name in ("stages run again", "zero 3", "tied weights, zero 2", "slices", "pipedream"):
        for _, lists, _ in changed_lists(lists_of(name)):
            try:
                prove(lists)
            except ScheduleError as error:
                left -= {text for text in left if re.search(f"{text}$", str(error))}
            if not left:
                return
    raise AssertionError(f"no list breaks {left}")
