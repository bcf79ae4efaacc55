"""Exit statuses of the ranks of one command: one rank says why, and its status is that of the job;
where ranks may be lost each of them has it.

Ranks are threads. What `train` raises ends a job, or where that is fault tolerant the rank alone.
"""

from functools import partial

import pytest
from helpers.statuses import IRIS, fails_on_all, statuses

from nnmpi import Config, Trainer, train
from nnmpi.comm import AbortedError
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.agreement import all_or_none


def fails_on_one_rank(trainer: Trainer) -> None:
    def fail() -> None:
        if trainer.comm.rank == 1:
            raise KeyError("of one rank")

    all_or_none(trainer.comm, fail)


@pytest.mark.parametrize("fault_tolerant", [False, True])
def test_an_error_that_all_have_is_told_by_one(
    fault_tolerant: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = 1 if fault_tolerant else 0
    assert statuses(fails_on_all, monkeypatch, fault_tolerant) == [1, others, others]
    assert capsys.readouterr().err == "nnmpi.train: of all ranks\n"


@pytest.mark.parametrize(
    ("fault_tolerant", "others"), [(False, 0), (True, "OtherRankError")], ids=["usual", "ULFM"]
)
def test_others_raise_the_error_of_one_where_that_ends_alone(
    fault_tolerant: bool, others: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the job has a status, whichever of them is the last to end."""
    found = statuses(fails_on_one_rank, monkeypatch, fault_tolerant)
    assert found == [others, "KeyError", others]


def test_an_error_before_the_first_step_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> None:
        raise KeyError("of all ranks")

    monkeypatch.setattr(train, "Trainer", partial(Trainer, build=build))
    with pytest.raises(AbortedError, match="of all ranks"):
        threads.run(2, lambda comm: train.train(Config(**IRIS), comm, ()), fault_tolerant=True)
