"""Optimizers with maximize=True and with dampening, in every layout and in 16 bits."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers.runs import LAYOUTS, trained

from nnmpi import optim
from nnmpi.nn.store import Operands

Make = Callable[[Any], optim.Optimizer]

OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1},
    "Adam": {"lr": 1e-3, "weight_decay": 0.1},
    "RAdam": {"lr": 1e-3},
}
DTYPES = ("float32", "float16", "bfloat16")


def negated(kind: Any) -> Any:
    """An optimizer that maximizes by gradients that it negates itself."""

    class Negated(kind):
        def _update(self, x: Operands, group: Any) -> None:
            super()._update(x._replace(grads=-x.grads), group)

    return Negated


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_steps_are_those_of_negative_gradients(name: str, dtype: str) -> None:
    def by(kind: Any, **given: Any) -> Make:
        return lambda named: kind([p for _, p in named], **OPTIONS[name], **given)

    kind = getattr(optim, name)
    found, falling, wanted = (
        trained(1, {"dtype": dtype}, optimizer=make)[0]
        for make in (by(kind, maximize=True), by(kind, maximize=False), by(negated(kind)))
    )
    assert found["loss"] > falling["loss"]
    assert found["parameters_sha256"] == wanted["parameters_sha256"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_layout_trains_as_one_rank(name: str, layout: tuple[int, dict[str, Any]]) -> None:
    """Where the first weight alone is maximized, so that values stay bounded."""

    def make(named: Any) -> optim.Optimizer:
        first = [p for path, p in named if path == "1.weight"]
        others = [p for path, p in named if path != "1.weight"]
        groups = [{"params": first, "maximize": True}, {"params": others}]
        return getattr(optim, name)(groups, **OPTIONS[name])

    found, alone = (trained(*one, optimizer=make)[0] for one in (layout, (1, {})))
    for key in ("loss", "test_loss"):
        assert found[key] == pytest.approx(alone[key], rel=1e-9)
