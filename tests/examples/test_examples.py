"""The scripts in examples/ run as their first lines say, and show what they promise."""

import json
import re
from pathlib import Path

import pytest
from helpers.mpijob import run

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {  # the first one tells what its process has sent
    "own_algorithm": r"sum 3, sent 8000 bytes\n9 ranks, 1 MB: 1\.00 of the time of tree",
    "own_model": r"done: accuracy 9\d\.\d\d%",
    "own_data": r"done: accuracy (9\d|100)\.\d\d%",
    "own_loop": r"epoch 3   loss \S+   accuracy 9\d\.\d\d%",
    "compare_strategies": r"data parallel: loss (0\.\d{4})\d*, .*\n.*pipeline: loss \1",
}
"""What each prints on two ranks."""


def test_each_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN}


PROGRAM = """
import io, json, runpy, sys
from contextlib import redirect_stdout
from nnmpi.comm import world

printed = []
for path in sys.argv[1:]:
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(path, run_name="__main__")
    printed.append(out.getvalue())
if world().rank == 0:
    print("\\n" + json.dumps(printed))
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What the first rank prints of each, in one job of two."""
    done = run(2, "-c", PROGRAM, *(EXAMPLES / f"{name}.py" for name in SHOWN))
    assert done.status == 0, done.err
    return dict(zip(SHOWN, json.loads(done.out.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_on_two_ranks(name: str, printed: dict[str, str]) -> None:
    assert re.search(SHOWN[name], printed[name], re.S), printed[name]
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"python examples/{name}.py" in text.splitlines()[0]
