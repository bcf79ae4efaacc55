"""The scripts in examples/ run as their first lines say, and show what they promise."""

import re
from pathlib import Path

import pytest
from helpers.mpijob import run

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "own_model": r"done: accuracy 9\d\.\d\d%",
    "own_data": r"done: accuracy (9\d|100)\.\d\d%",
    "own_loop": r"epoch 3   loss \S+   accuracy 9\d\.\d\d%",
    "compare_strategies": r"data parallel: loss (0\.\d{4})\d*, .*\n.*pipeline: loss \1",
    "own_algorithm": r"sum 3, sent 8000 bytes\n9 ranks, 1 MB: 1\.00 of the time of tree",
}
"""What each prints on two ranks."""


def test_each_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_on_two_ranks(name: str, tmp_path: Path) -> None:
    done = run(2, EXAMPLES / f"{name}.py")
    assert done.status == 0, done.err
    assert re.search(SHOWN[name], done.out, re.S), done.out
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"python examples/{name}.py" in text.splitlines()[0]
