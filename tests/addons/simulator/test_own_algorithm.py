"""docs/your-own-algorithm.md as it stands, and algorithms named as package.module:NAME."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnmpi import Config
from nnmpi.collectives.step import PlanError
from nnmpi.collectives.verify import verify
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

PAGE = (Path(__file__).parents[3] / "docs" / "your-own-algorithm.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)[0]
OUTPUTS = re.findall(r"^\$ python -m nnmpi\.simulate (.*)\n((?:.*\n)*?)```", PAGE, re.M)
REFUSED = tomllib.loads(Path(__file__).with_name("own_algorithms.toml").read_text(encoding="utf-8"))
OTHERS = """
from nnmpi.collectives import ALGORITHMS

LONG_LATER = CHAIN._replace(rounds=lambda p: CHAIN.rounds(p) if p < 18 else 10**9)
HALVES = CHAIN._replace(at=lambda t, r, p: CHAIN.at(t, r, p)._replace(source=r / 2))
HALVES_LATER = CHAIN._replace(at=lambda t, r, p: (CHAIN if p < 18 else HALVES).at(t, r, p))
"""
OTHERS += "\n".join(row["code"] for row in REFUSED.values() if "code" in row)
KIND = "collective"


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


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_on_all_ranks(name: str) -> None:
    says = REFUSED[name]["says"]

    def refused(comm: Comm) -> str:
        with pytest.raises(ValueError, match=re.escape(says)):
            comm.all_reduce(np.ones(4), algorithm=name)
        return "refused"

    assert threads.run(3, refused) == ["refused"] * 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("LONG_LATER", "rounds(p) is 1000000000, not a whole number from 0 to 4,168"),
        ("HALVES_LATER", "arrays used as indices must be of integer"),
    ],
)
def test_a_plan_that_is_wrong_on_many_ranks_is_named(name: str, says: str, simulator: Any) -> None:
    result = simulator(f"--algorithm others:{name} --ranks 18 --bytes 1MB")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"algorithm 'others:{name}' is no all-reduce of 18 ranks: " in result.err
    assert says in result.err


def test_the_option_takes_it() -> None:
    assert Config(allreduce="chain:CHAIN").allreduce == "chain:CHAIN"
    with pytest.raises(ValueError, match=r"auto, mpi.*hierarchical,.* package\.module:NAME"):
        Config(allreduce="chain")
