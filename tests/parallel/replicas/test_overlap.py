"""Sums hide behind the backward pass: what begins in it, who pushes it, and in how many buckets."""

import re
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.progress import Work
from nnmpi.parallel.replicas.gradient_sync import BucketedSync
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
