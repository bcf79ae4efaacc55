"""A value that a recorded pass reads is changed: the pass is recorded again, or is never replayed.
And code that reads nothing that changes unnoticed is replayed."""

from typing import Any

import numpy as np
import pytest
from helpers.training import changed_values as table
from helpers.training.changed_values import Way
from helpers.training.steps import results

import nnmpi
from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.comm import comm_self
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.step.stage_lists import ReplayedStages

WAYS = {**table.OF_PROGRAM, **table.OF_MODEL}
X = np.linspace(-1, 1, 4, dtype="float32").repeat(28).reshape(4, 28).T.copy()
Y = np.zeros((28, 3), "float32")
Found = tuple[list[Any], int]


class Changes:
    """Keeps the losses, and makes the change after the fourth step."""

    def __init__(self, way: Way, names: dict[str, Any]) -> None:
        self._way, self._names, self.losses = way, names, list[Any]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])
        if event["step"] == 4:
            self._way.changed(self._names, trainer.model)


def trained(way: Way, compiled: bool, of_model: bool, made: list[ReplayedStages]) -> Found:
    """The losses of seven steps on equal batches, at a rate that changes no parameter; and how many
    passes were replayed."""
    names = way.names(of_model)
    heard, loss = Changes(way, names), names.get("loss", nn.functional.mse_loss)
    options: dict[str, Any] = {"batch_size": 4, "lr": 1e-30, "optimizer": "sgd", "epochs": 1}
    config = Config(**options, quiet=True, compile=compiled, seed=1)
    try:
        data = X, Y, X[:4], Y[:4]
        with Trainer(
            config, names["Model"], data, comm_self(), loss=loss, callbacks=[heard]
        ) as trainer:
            trainer.fit(NullReport())
    finally:
        exec(way.undo, names)
    return heard.losses, sum(lists.replays for one in made for lists in one.lists.values())


def looped(way: Way, compiled: bool, of_model: bool) -> Found:
    """The same for a step of a loop of one's own. A step that is refused runs as written."""
    names = way.names(of_model)
    with nnmpi.seeded(1):
        model = names["Model"]()
    losses, written = list[Any](), names.get("step", lambda x, y, *, model: model(x).sum())

    def function(x: Tensor, y: Any) -> Any:
        return written(x, y, model=model)

    step = nnmpi.compile(function)
    try:
        for number in range(7):
            if number == 4:
                way.changed(names, model)
            try:
                losses.append(results((step if compiled else function)(Tensor(X[:4]), Y[:4])))
            except ValueError:
                losses.append(results(function(Tensor(X[:4]), Y[:4])))
    finally:
        exec(way.undo, names)
    return losses, step.replays


def check(way: Way, found: Found, wanted: Found) -> None:
    if way.change == "pass":  # it is another value in each call
        assert found[1] == 0
    else:
        assert found[0] == wanted[0]
        assert wanted[0][4] != wanted[0][3]


def test_there_are_58_ways_and_more() -> None:
    assert len(WAYS) >= 58


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_trainer_notices_a_change_in_a_model(way: Way, made: list[ReplayedStages]) -> None:
    wanted = trained(way, False, True, [])
    made.clear()
    check(way, trained(way, True, True, made), wanted)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", table.OF_PROGRAM.values(), ids=table.OF_PROGRAM)
def test_a_trainer_notices_a_change_in_a_loss(way: Way, made: list[ReplayedStages]) -> None:
    wanted = trained(way, False, False, [])
    made.clear()
    check(way, trained(way, True, False, made), wanted)


@pytest.mark.filterwarnings("ignore:nnmpi.compile")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_compiled_step_notices_a_change_in_a_model(way: Way) -> None:
    check(way, looped(way, True, True), looped(way, False, True))


@pytest.mark.filterwarnings("ignore:nnmpi.compile")
@pytest.mark.parametrize("way", table.OF_PROGRAM.values(), ids=table.OF_PROGRAM)
def test_a_compiled_step_notices_a_change_in_its_code(way: Way) -> None:
    check(way, looped(way, True, False), looped(way, False, False))


HARMLESS = {**table.HARMLESS, **table.HARMLESS_OF_MODEL}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_expressions_are_replayed(name: str, made: list[ReplayedStages]) -> None:
    way = HARMLESS[name]
    for of_model in (True, False)[: 1 + (name in table.HARMLESS)]:
        assert looped(way, True, of_model)[1] == 6
        assert trained(way, True, of_model, made)[1] >= 4
        made.clear()


def test_a_second_fit_keeps_no_stale_lists() -> None:
    """Also of what changes before it begins."""
    found = []
    for compiled in (False, True):
        way = table.OF_PROGRAM["| settings.helper() | settings.SCALE = 3.0"]
        names, data = way.names(), (X, Y, X[:4], Y[:4])
        heard = Changes(Way("", "", "pass"), names)
        config = Config(batch_size=4, lr=1e-30, epochs=2, quiet=True, compile=compiled, seed=1)
        loss = nn.functional.mse_loss
        with Trainer(config, names["Model"], data, comm_self(), loss=loss, callbacks=[heard]) as t:
            t.fit(NullReport(), epochs=1)
            way.changed(names, t.model)
            t.fit(NullReport(), epochs=1)
        found.append(heard.losses)
    assert found[0] == found[1]
    assert found[0][6] != found[0][7]
