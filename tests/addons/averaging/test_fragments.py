"""Fragments: which layers they have, when a run refuses them, and that they are sent meanwhile."""

from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.training import laws_averaging as laws
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer
from nnmpi.addons.averaging.fragments import layer_of
from nnmpi.addons.compression.exchange import Exchange
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport


def test_a_layer_is_a_block_or_a_module() -> None:
    layers = {"h.0.attn.c_attn.weight": "h.0", "wte.weight": "wte", "2.bias": "2", "scale": ""}
    assert {path: layer_of(path) for path in layers} == layers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fragments": 3}, "--fragments 3 must be from 1 to 2, the layers"),
        ({"apply_after": 7}, "--apply-after 7 must be from 0 to --every 5"),
        (
            {"fragments": 2, "apply_after": 3},
            "--apply-after 3 must be below 3, the steps from one fragment to the next: --every 5 / "
            "--fragments 2, rounded up",
        ),
    ],
)
def test_schedules_that_no_run_can_follow(options: dict[str, Any], says: str) -> None:
    with refused(says):
        Trainer(Config(**{**laws.LOCAL, "every": 5, **options}), data=digits(), comm=comm_self())


@pytest.mark.parametrize("apply_after", [0, 1])
def test_what_is_on_its_way_moves_while_steps_are_computed(
    monkeypatch: pytest.MonkeyPatch, apply_after: int
) -> None:
    polls, poll = list[bool](), Exchange.poll

    def counted(exchange: Exchange) -> bool:
        polls.append(exchange.done)
        return poll(exchange)

    monkeypatch.setattr(Exchange, "poll", counted)

    def fit(comm: Comm) -> None:
        options = {**laws.LOCAL, "every": 2, "apply_after": apply_after}
        with Trainer(Config(**options), data=digits(), comm=comm) as trainer:
            trainer.fit(NullReport())

    threads.run(2, fit)
    assert (False in polls) is (apply_after > 0)
