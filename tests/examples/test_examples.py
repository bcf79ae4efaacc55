"""The scripts in examples/ run as their first lines say, and show what they promise."""

import json
import re
from importlib.util import find_spec
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
    "weight_average": r"last weights: test loss 0\.\d{4}\n.*their average: test loss 0\.0\d{3}",
    "early_stopping": r"\d\d steps, best test loss 0\.0\d{3}",
    "find_learning_rate": r"take about 0\.0\d",
    "own_augmentation": r"accuracy 0\.\d{4}",
    "cross_validation": r"accuracy \[0\.[89].*best \{'lr': 0\.02\}",
}
"""What each prints on two ranks."""
ALIKE = "weight_average", "early_stopping", "find_learning_rate", "own_augmentation"
ALIKE += ("cross_validation",)
"""Those that print the same on both ranks."""
HAS_SKLEARN = find_spec("sklearn") and find_spec("nnmpi.sklearn")
MISSING = set[str]() if HAS_SKLEARN else {"cross_validation"}


def test_each_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN}


PROGRAM = """
import io, json, runpy, sys
from contextlib import redirect_stdout
from nnmpi.comm import world
from nnmpi.parallel.agreement import gather_objects

printed = []
for path in sys.argv[1:]:
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(path, run_name="__main__")
    printed.append(out.getvalue())
printed = gather_objects(world(), printed)
if world().rank == 0:
    print("\\n" + json.dumps(printed))
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, tuple[str, str]]:
    """What both ranks print of each, in one job."""
    names = [name for name in SHOWN if name not in MISSING]
    done = run(2, "-c", PROGRAM, *(EXAMPLES / f"{name}.py" for name in names), timeout=240)
    assert done.status == 0, done.err
    first, second = json.loads(done.out.splitlines()[-1])
    return {name: (a, b) for name, a, b in zip(names, first, second, strict=True)}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_on_two_ranks(name: str, printed: dict[str, tuple[str, str]]) -> None:
    if name in MISSING:
        pytest.skip("scikit-learn is not installed")
    first, second = printed[name]
    assert re.search(SHOWN[name], first, re.S), first
    if name in ALIKE:
        own = [line for line in first.splitlines() if not re.match("(done|stopped): ", line)]
        assert own == second.splitlines()
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"python examples/{name}.py" in text.splitlines()[0]
