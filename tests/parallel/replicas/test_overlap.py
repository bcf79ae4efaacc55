"""Sums hide behind the backward pass: what begins in it, who pushes it, and in how many buckets."""

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.training.served import Noted, clouds

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.progress import Work
from nnmpi.parallel.replicas.gradient_sync import BucketedSync
from nnmpi.parallel.replicas.scattered_sync import ScatteredSync
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.run.report import NullReport

LAYERS = {"data": "iris", "model": "mlp:4-128-128-3", "bucket_mb": 1e-6}  # a bucket a parameter
HELPER = "nnmpi helper"


class Log:
    """What each rank does, a letter an event, in its own order.

    [ ]  a backward pass begins, and ends     s  a sum of gradients begins     p  a work is polled
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._letters: dict[int, list[str]] = defaultdict(list)
        self._note(patch, nnmpi.Tensor, "backward", "[", "]")
        self._note(patch, Work, "poll", "p")
        self._note(patch, BucketedSync, "_start_next", "s")

    def fit(self, comm: Comm, config: Config) -> str:
        """What this rank does in a run."""
        trainer = Trainer(config, comm=comm)
        mine = self._letters[threading.get_ident()]
        mine.clear()
        trainer.fit(NullReport())
        return "".join(mine)

    def _note(
        self, patch: pytest.MonkeyPatch, owner: type, name: str, before: str, after: str = ""
    ) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            mine = self._letters[threading.get_ident()]
            mine.append(before)
            result = call(*arguments, **named)
            mine.append(after)
            return result

        patch.setattr(owner, name, noted)


@pytest.mark.parametrize("progress", ["poll", "thread"])
@pytest.mark.parametrize("allreduce", ["shared", "ring"])
def test_sums_begin_in_the_last_backward_pass_of_a_step_and_are_pushed_there(
    allreduce: str, progress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    config = Config(**LAYERS, steps=2, micro_batches=2, allreduce=allreduce, progress=progress)
    for ended in threads.run(2, log.fit, config):
        assert ended.replace("p", "") == "[][ssssss]" * 2
        assert len(re.findall(r"\[[^]]*sp+s[^]]*\]", ended)) == 2


@pytest.mark.parametrize("allreduce", ["shared", "ring"])
def test_without_overlap_sums_begin_when_all_gradients_are_there(
    allreduce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    config = Config(**LAYERS, steps=2, micro_batches=2, allreduce=allreduce, overlap=False)
    for ended in threads.run(2, log.fit, config):
        assert ended.lstrip("p") == "[][]ssssss" * 2  # ranks meet before the first step


@pytest.mark.parametrize(
    ("options", "sync", "passes"),
    [
        ({}, BucketedSync, 1),
        ({"overlap": False}, BucketedSync, 1),
        ({"pp": 2, "schedule": "interleaved"}, BucketedSync, 1),
        ({"pp": 2, "schedule": "zb-h1"}, BucketedSync, 1),
        ({"zero": 2}, ScatteredSync, 4),
    ],
    ids=str,
)
def test_a_sync_is_told_of_parameters_in_the_passes_that_it_needs(
    options: dict[str, Any],
    sync: type[GradientSync],
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of gradients that leave in each pass, in each of four; else in the last one of a stage."""
    told: Counter[tuple[int, str]] = Counter()
    ready = sync.ready

    def noted(self: GradientSync, p: nnmpi.nn.Parameter) -> None:
        told[threading.get_ident(), p.place.path] += 1
        ready(self, p)

    def rank(comm: Comm) -> None:
        mlp = Config(data="iris", model="mlp:4-8-8-8-3", steps=1, micro_batches=4)
        config = replace(mlp, allreduce="ring", dp=2, **options)
        Trainer(config, comm=comm).fit(NullReport())

    monkeypatch.setattr(sync, "ready", noted)
    threads.run(2 * options.get("pp", 1), rank)
    assert len(told) == 2 * 8
    assert {*told.values()} == {passes}


@pytest.mark.parametrize("progress", ["poll", "thread"])
def test_a_thread_runs_beside_each_rank_if_it_is_asked_for(progress: str) -> None:
    found: list[int] = []
    config = Config(steps=3, progress=progress, allreduce="ring")

    def rank(comm: Comm) -> None:
        model = partial(Noted, lambda step: found.append(helpers()))
        trainer = Trainer(config, model, clouds(60), comm)
        found.clear()
        trainer.fit(NullReport())
        comm.barrier()

    threads.run(2, rank)
    least, most = {"poll": (0, 0), "thread": (1, 2)}[progress]
    assert len(found) >= 3
    assert least <= min(found) <= max(found) <= most
    assert not helpers()


def helpers() -> int:
    return sum(thread.name == HELPER for thread in threading.enumerate())


WIDE = {"data": "iris", "model": "mlp:4-600-600-600-3", "steps": 1}  # 1.44 MB of weights, twice


@pytest.mark.parametrize(
    ("options", "per_node", "sums"),
    [
        ({"allreduce": "ring"}, 2, 3),
        ({"allreduce": "shared"}, 1, 3),
        ({"allreduce": "shared"}, 2, 1),  # nothing is sent
        ({"allreduce": "shared", "bucket_mb": 1.0}, 2, 3),
        ({"allreduce": "ring", "bucket_mb": 2.0}, 2, 2),
        ({"allreduce": "ring", "bucket_mb": 100.0}, 2, 1),
    ],
    ids=str,
)
def test_buckets_are_of_1_mb_where_they_are_sent(
    options: dict[str, Any], per_node: int, sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    for ended in threads.run(2, log.fit, Config(**WIDE, **options), per_node=per_node):
        assert ended.count("s") == sums
