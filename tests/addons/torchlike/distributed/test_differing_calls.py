"""Ranks that call `nnmpi.distributed` differently: the job ends with a line that says how."""

import sys
from pathlib import Path

import pytest
from helpers import differing_calls
from helpers.differing_calls import PAIRS
from helpers.mpijob import run

import nnmpi.distributed as dist
from nnmpi.comm import Comm, MismatchError, thread_ranks
from nnmpi.comm.debug.compare import name_ranks

SCRIPT = Path(differing_calls.__file__)
QUICK = ("senders", "in shared memory")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_every_rank_raises_how_the_calls_differ(name: str, size: int) -> None:
    texts: list[str] = []

    def f(comm: Comm) -> None:
        dist.init_process_group(comm=comm)
        dist.group.WORLD.rows.may_wait = False
        with pytest.raises(MismatchError) as caught:
            differing_calls.call(name, comm.rank)
        texts.append(str(caught.value))

    thread_ranks.run(size, f)
    assert len(texts) == size
    assert len(set(texts)) == 1
    says(texts[0], name, name_ranks([0, *range(2, size)]))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in PAIRS]
)
def test_a_job_ends_with_the_calls_that_differ(name: str) -> None:
    ended = run(2, SCRIPT, name, timeout=100, python=sys.executable)
    assert ended.status not in (0, None), ended.err
    lines = [line for line in ended.err.splitlines() if "MismatchError: " in line]
    says(lines[0], name, "rank 0")


def says(text: str, name: str, others: str) -> None:
    """The text names both calls, who makes them, and the line."""
    usual, other = PAIRS[name].words
    texts = text.split("the ranks of Comm world differ in call ")[1]
    calls = texts.split(": ", 1)[1].split(", while ")
    by = {words.partition(" call")[0]: words for words in calls}
    assert by.keys() == {others, "rank 1"}
    assert usual in by[others]
    assert other in by["rank 1"]
    assert all("differing_calls.py:" in words for words in calls)
