"""How many threads BLAS takes, and what a run says of them."""

import os
from pathlib import Path

import pytest
from helpers.commands import IRIS, Command

from nnmpi import Config, Trainer, blas
from nnmpi.comm import Comm, thread_ranks
from nnmpi.run.setup import threads
from nnmpi.run.text import generate_command

LARGE = {"model": "mlp:64-1024-1024-10", "batch_size": 128}


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that are set, on two cores of a quiet machine."""
    found: list[int] = []
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(blas, "set_threads", found.append)
    monkeypatch.setattr(blas, "threads", lambda: found[-1] if found else 2)
    monkeypatch.setattr(blas, "cores", lambda ranks: 2)
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    return found


def test_all_ranks_have_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of two ranks with four cores each, and one of a rank with eight."""
    monkeypatch.setattr(blas, "cores", lambda ranks: 8 // ranks)

    def number(comm: Comm) -> tuple[int, int]:
        with Trainer(Config(**LARGE), comm=comm) as trainer:  # type: ignore[arg-type]
            a = trainer.arrangement
            alone = threads.paying(a, blas.cores(len(comm.node())))
            return alone, threads.on_all_ranks(a, comm)

    assert thread_ranks.run(3, number, per_node=2) == [(4, 4), (4, 4), (5, 4)]


@pytest.mark.parametrize(
    ("model", "set_to"), [("digits-cnn", [1, 1]), ("mlp:64-1024-1024-10", [1, 2])]
)
def test_the_command_sets_the_number(
    model: str, set_to: list[int], numbers: list[int], command: Command
) -> None:
    done = command("--model", model, "--batch-size", "128", "--steps", "1")
    start = done.events[0]
    assert numbers == set_to
    assert start["blas"]["threads"] == set_to[-1]
    assert start["blas"]["why"] == f"the products of this model pay for {set_to[-1]} of 2 cores"
    assert start["advice"] == []


def test_the_number_that_a_user_has_set_stays(
    numbers: list[int], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    start = command(*IRIS, "--steps", "1").events[0]
    assert numbers == []
    assert start["blas"]["why"] == "OMP_NUM_THREADS is set"
    assert start["advice"] == []


def test_a_library_is_told_of_threads_that_do_not_pay(
    numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(model="iris-mlp", data="iris", steps=1)
    Trainer(config).fit()
    assert numbers == []  # the process is its own
    line = "warning: BLAS has 2 threads, and the products of this model pay for 1: call nnmpi.blas."
    assert line in capsys.readouterr().out
    blas.default_threads(1)
    Trainer(config).fit()
    assert "warning" not in capsys.readouterr().out


def test_threads_beside_other_programs_are_told_of(
    numbers: list[int], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0, 4.0, 4.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    run = command("--model", "mlp:64-1024-1024-10", "--batch-size", "128", "--steps", "1")
    assert [x[:26] for x in run.events[0]["advice"]] == ["the load is 4.0 on 2 cores"]
    assert command(*IRIS, "--steps", "1").events[0]["advice"] == []


def test_a_generator_takes_one_thread(
    numbers: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert generate_command.main(["--load", str(tmp_path / "none"), "--prompt", "a"]) == 2
    assert numbers == [1]
