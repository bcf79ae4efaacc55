"""docs/your-own-algorithm.md as it stands, and algorithms named as package.module:NAME."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnmpi import Config
from nnmpi.collectives.verify import MANY, PlanError, proven, verify
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-algorithm.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)[0]
OUTPUTS = re.findall(r"^\$ python -m nnmpi\.simulate (.*)\n((?:.*\n)*?)```", PAGE, re.M)
OTHERS = """
from nnmpi.collectives import ALGORITHMS

HALF = reduction
NUMBER = 3
WRONG = Algorithm(rounds, lambda p: K + 1, up)


def branches(t, r, p):
    if r > 0:
        return Step(r - 1, (0, 1), -1, (0, 1), True)
    return Step(-1, (0, 1), 1, (0, 1), True)


BRANCHES = Algorithm(lambda p: p - 1, lambda p: 1, branches)
BRANCHES_ALWAYS = BRANCHES._replace(rounds=lambda p: 1)
SCALAR = Algorithm(lambda p: p - 1, lambda p: 1, lambda t, r, p: Step(int(r), (0, 1), 0, (0, 1), 1))
"""


@pytest.fixture(autouse=True)
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module `chain` of the page can be imported."""
    (tmp_path / "chain.py").write_text(CODE)
    (tmp_path / "others.py").write_text(CODE + OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return


def test_the_page_shows_outputs_and_what_the_proof_says() -> None:
    assert len(OUTPUTS) == 2
    code = CODE.replace("(out >= 0) & (out < K)", "(out >= 0) & (out <= K)")
    names: dict[str, object] = {}
    exec(code, names)
    verify(names["CHAIN"], 2)  # type: ignore[arg-type]
    with pytest.raises(PlanError) as error:
        verify(names["CHAIN"], 3)  # type: ignore[arg-type]
    assert f"of 3 ranks: {error.value}" in PAGE


def test_every_rank_gets_the_sum() -> None:
    def sums(comm: Comm) -> list[float]:
        x = np.arange(10.0) + comm.rank
        comm.all_reduce(x, algorithm="chain:CHAIN")
        y = np.full(3, comm.rank + 1.0)
        comm.start(y, algorithm="chain:CHAIN").wait()
        return [*x, *y]

    for size in (1, 2, 3, 5):
        ranks = np.arange(size)
        expected = [*(np.arange(10.0) * size + ranks.sum()), *[(ranks + 1.0).sum()] * 3]
        assert threads.run(size, sums) == [expected] * size


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("others:HALF", "'others:HALF' is no all-reduce of 3 ranks: at the end: rank 1"),
        ("others:NUMBER", "is of type int; it must be an Algorithm"),
        ("others:NONE", "module others has no 'NONE'"),
        ("nowhere:CHAIN", "no module named 'nowhere'; run in its directory or set PYTHONPATH"),
        ("others:BRANCHES", "write only(condition, peer) or np.where(condition, a, b)"),
        ("others:SCALAR", "write only(condition, peer) or np.where(condition, a, b)"),
        ("chain", "choose one of auto, ring, tree"),
    ],
)
def test_what_cannot_be_used_is_refused_on_all_ranks(name: str, says: str) -> None:
    def refused(comm: Comm) -> str:
        with pytest.raises(ValueError, match=re.escape(says)):
            comm.all_reduce(np.ones(4), algorithm=name)
        return "refused"

    assert threads.run(3, refused) == ["refused"] * 3


def test_a_plan_that_branches_and_also_fails_on_one_rank_gets_the_hint() -> None:
    with pytest.raises(ValueError, match=re.escape("write only(condition, peer)")):
        proven("others:BRANCHES_ALWAYS", MANY)


def test_errors_of_the_algorithm_itself_are_not_explained_away() -> None:
    names: dict[str, object] = {}
    exec(CODE + "\ndef at(t, r, p):\n    raise ValueError('mine')\n", names)
    broken = names["reduction"]._replace(at=names["at"])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^mine$"):
        list(broken.steps(np.arange(3), 3))


def test_the_option_takes_it() -> None:
    assert Config(allreduce="chain:CHAIN").allreduce == "chain:CHAIN"
    with pytest.raises(ValueError, match=r"auto, mpi.*hierarchical, nccl, package\.module:NAME"):
        Config(allreduce="chain")
