"""Optimizers with maximize=True and with dampening, in every layout and in 16 bits."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers.runs import LAYOUTS, rows, small

from nnmpi import Config, Trainer, optim
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.store import Operands

Named = Any
Make = Callable[[Named], optim.Optimizer]


class NegatedSGD(optim.SGD):
    """An SGD that maximizes by gradients that it negates itself."""

    def _update(self, x: Operands, group: Any) -> None:
        super()._update(x._replace(grads=-x.grads), group)


class NegatedAdam(optim.Adam):
    def _update(self, x: Operands, group: Any) -> None:
        super()._update(x._replace(grads=-x.grads), group)


class NegatedRAdam(optim.RAdam):
    def _update(self, x: Operands, group: Any) -> None:
        super()._update(x._replace(grads=-x.grads), group)


OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1},
    "Adam": {"lr": 1e-3, "weight_decay": 0.1},
    "RAdam": {"lr": 1e-3},
}
NEGATED: dict[str, Any] = {"SGD": NegatedSGD, "Adam": NegatedAdam, "RAdam": NegatedRAdam}
DTYPES = ("float32", "float16", "bfloat16")


def maximizing(name: str) -> Make:
    """The optimizer maximizes the first weight only, so that values stay bounded."""

    def make(named: Named) -> optim.Optimizer:
        first = [p for path, p in named if path == "1.weight"]
        others = [p for path, p in named if path != "1.weight"]
        groups = [{"params": first, "maximize": True}, {"params": others}]
        return getattr(optim, name)(groups, **OPTIONS[name])  # type: ignore[no-any-return]

    return make


def negating(name: str) -> Make:
    def make(named: Named) -> optim.Optimizer:
        return NEGATED[name]([p for _, p in named], **OPTIONS[name])  # type: ignore[no-any-return]

    return make


def wholly(name: str, maximize: bool = True) -> Make:
    def make(named: Named) -> optim.Optimizer:
        kind: Any = getattr(optim, name)
        return kind([p for _, p in named], maximize=maximize, **OPTIONS[name])  # type: ignore[no-any-return]

    return make


def trained(ranks: int, make: Make, **options: Any) -> Event:
    """The last event of a run of two epochs."""

    def rank(comm: Comm) -> Event:
        config = Config(**{"epochs": 2, "batch_size": 28, "dtype": "float64", **options})
        with Trainer(config, small, rows(), comm, optimizer=make) as trainer:
            return trainer.fit(NullReport())

    return threads.run(ranks, rank)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_steps_are_those_of_negative_gradients(name: str, dtype: str) -> None:
    found = trained(1, wholly(name), dtype=dtype)
    assert found["loss"] > trained(1, wholly(name, maximize=False), dtype=dtype)["loss"]
    wanted = trained(1, negating(name), dtype=dtype)
    assert found["parameters_sha256"] == wanted["parameters_sha256"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_layout_trains_as_one_rank(name: str, layout: tuple[int, dict[str, Any]]) -> None:
    ranks, options = layout
    found, alone = (trained(n, maximizing(name), **o) for n, o in ((ranks, options), (1, {})))
    for key in ("loss", "test_loss"):
        assert found[key] == pytest.approx(alone[key], rel=1e-9)
