"""An optimizer and a schedule that the user's functions make, in every layout; with maximize=True
and with dampening, and in 16 bits."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from helpers import runs
from helpers.mpijob import ROOT
from helpers.runs import LAYOUTS, small, trained

from nnmpi import Trainer, optim
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.store import Operands
from nnmpi.optim import Optimizer
from nnmpi.parallel.strategy import AgreedError

OWN_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **LAYOUTS,
    "servers": (3, {"sync": "bsp", "servers": 1}),
    "verify in float32": (2, {"verify": True, "dtype": "float32"}),
}


def grouped(named: Any) -> Optimizer:
    """Biases first, without weight decay; the last weight has a rate of its own."""
    head = [p for path, p in named if path == "3.weight"]
    biases = [p for path, p in named if p.ndim == 1]
    others = [p for path, p in named if p.ndim > 1 and path != "3.weight"]
    groups = [
        {"params": biases, "weight_decay": 0.0},
        {"params": head, "lr": 0.03},
        {"params": others},
    ]
    return optim.AdamW(groups, lr=0.01, weight_decay=0.3)


def halved(step: int) -> float:
    return 0.5 ** (step // 3)


OWN = {"optimizer": grouped, "schedule": halved}


def trainer_of(comm: Comm, **own: Any) -> Trainer:
    return runs.trainer_of(comm, {"epochs": 3}, **{**OWN, **own})


def run(ranks: int, options: Mapping[str, Any] = {}, **own: Any) -> Event:
    return runs.trained(ranks, {"epochs": 3, **options}, **{**OWN, **own})[0]


@pytest.fixture(scope="module")
def alone() -> Event:
    return run(1)


def test_it_is_the_loop_by_hand(alone: Event) -> None:
    trainer = threads.run(1, trainer_of)[0]
    model, loss_of = trainer.model, trainer.session.task.objective.loss
    opt = grouped([*model.named_parameters()])
    step = 0
    for epoch in range(3):
        for load in trainer.train.loads(epoch, lambda rows: [rows]):
            (batch,) = load.micro
            loss = loss_of(model(batch.x), batch.y) / len(batch.y)
            opt.zero_grad()
            loss.backward()
            opt.step(lr_factor=halved(step))
            step += 1
    model.eval()
    found = trainer.evaluate().mean_loss
    assert found == pytest.approx(alone["test_loss"], rel=1e-9)
    assert trainer.optimizer.param_groups[1]["lr"] == 0.03


@pytest.mark.parametrize("layout", OWN_LAYOUTS.values(), ids=OWN_LAYOUTS)
def test_every_layout_has_the_same_groups(layout: tuple[int, dict[str, Any]], alone: Event) -> None:
    found = run(*layout)
    rel = 1e-4 if "dtype" in layout[1] else 1e-9
    for name in ("loss", "test_loss"):
        assert found[name] == pytest.approx(alone[name], rel=rel)


def by_signs(named: Any) -> Optimizer:
    return optim.Rprop([p for _, p in named], lr=0.002)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_rprop_trains_as_one_rank(layout: tuple[int, dict[str, Any]]) -> None:
    """Its first step sizes are the rate of the first step."""
    found, alone = (run(*one, optimizer=by_signs) for one in (layout, (1,)))
    for name in ("loss", "test_loss"):
        assert found[name] == pytest.approx(alone[name], rel=1e-9)


PAGE = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
(RULE,) = re.findall(r"^class Signum.*?(?=\n\n\n)", PAGE, re.S | re.M)


def test_the_update_rule_of_the_page_trains_alike_in_other_layouts() -> None:
    names: dict[str, Any] = {"optim": optim, "np": np}
    exec(RULE, names)

    def signum(named: Any) -> Optimizer:
        return names["Signum"]([p for _, p in named], lr=0.003)

    alone = run(1, optimizer=signum)
    for options in ({"dp": 2, "zero": 1}, {"pp": 2}):
        found = run(2, options, optimizer=signum)
        assert found["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-9), options


def test_layouts_change_in_a_run(alone: Event) -> None:
    class Rearrange:
        def on_epoch(self, trainer: Trainer, event: Event) -> None:
            trainer.rearrange(**[{"pp": 2}, {"zero": 1}, {}][event["epoch"] - 1])

    found = run(2, callbacks=[Rearrange()])
    assert found["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-9)


def missing(named: Any) -> Optimizer:
    return optim.SGD([p for _, p in named[1:]])


def by_rate(named: Any) -> Optimizer:
    return optim.SGD([p for _, p in named], lr=0.1 if named[0][0] == "1.weight" else 0.2)


OF_A_MODEL = optim.SGD(small().parameters())
REFUSED: dict[str, tuple[str, Any, str]] = {
    "a model's": ("optimizer", OF_A_MODEL, "optimizer is <nnmpi.optim.*: give a function"),
    "a class": ("optimizer", optim.SGD, "optimizer is <class .*: give a function"),
    "a list": ("optimizer", lambda named: named, "returned a list: return one of nnmpi.optim"),
    "not all": ("optimizer", missing, "parameters that it gets, and 1.weight is not in both"),
    "a rate": ("optimizer", by_rate, "rank 1 has other groups than rank 0"),
    "no schedule": ("schedule", 0.5, "schedule is 0.5: give a function"),
    "no factor": ("schedule", lambda step: None, "returned None for step 0: return a number"),
    "negative": ("schedule", lambda step: 4 - step, "returned -1 for step 5"),
}


@pytest.mark.parametrize(("name", "own", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_cannot_be_is_refused(ranks: int, name: str, own: Any, words: str) -> None:
    if own is by_rate and ranks == 1:
        pytest.skip("of several ranks")
    with pytest.raises(ValueError, match=rf"\A[^\n]*{words}[^\n]*\Z"):
        run(ranks, {"pp": 2} if own is by_rate else {}, **{name: own})


def test_an_optimizer_that_fails_on_one_rank_fails_on_all() -> None:
    def rank(comm: Comm) -> None:
        with pytest.raises((ValueError, OtherRankError), match=r"1\.weight is not in both"):
            trainer_of(comm, optimizer=missing if comm.rank else grouped)

    threads.run(2, rank)


@pytest.mark.parametrize("step", [1, 5])  # of the first epoch and of the last
def test_schedules_that_differ_end_the_run(step: int) -> None:
    def rank(comm: Comm) -> int:
        trainer = trainer_of(comm, schedule=lambda t: 1.0 if t < step else 1.0 - 0.1 * comm.rank)
        with pytest.raises(AgreedError, match="ranks 0 and 1 differ in what the schedule returns"):
            trainer.fit(NullReport())
        return trainer.step

    assert threads.run(2, rank) == [2 * (step // 2)] * 2


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
