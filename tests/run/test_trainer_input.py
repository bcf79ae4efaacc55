"""Arguments of a Trainer: models and data in any form, options that reach every layer."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import equal, fit, images, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi import data as datasets
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.nn.models import digits_cnn
from nnmpi.nn.passes import current_pass


def test_data_may_come_in_any_form() -> None:
    x, y = rows()
    d = datasets.from_arrays(x, y, seed=2)
    four = (*d.train, *d.test)
    config = Config(model="mlp:6-8-3", epochs=1, seed=2)
    forms = [(x, y), [x, y], (x.tolist(), y.tolist()), four, d]
    results = [fit(Trainer(config, data=form)) for form in forms]
    assert len({result["parameters_sha256"] for result in results}) == 1
    assert len({result["test_loss"] for result in results}) == 1
    named = fit(Trainer(Config(model="iris-mlp", data="iris", epochs=1)))
    given = fit(Trainer(Config(model="iris-mlp", epochs=1), data=datasets.load("iris")))
    assert named["parameters_sha256"] == given["parameters_sha256"]


def test_the_start_event_names_model_and_data() -> None:
    trainer = Trainer(Config(), small, rows())
    event = trainer.describe()
    assert (event["model"], event["data"], event["parameters"]) == ("small", "arrays", 83)
    assert (event["train_samples"], event["test_samples"]) == (56, 14)


def test_frozen_parameters_are_not_updated() -> None:
    def build() -> nn.Module:
        model = small()
        model[1].weight.requires_grad = False
        return model

    trainer = Trainer(Config(epochs=1, weight_decay=0.1), build, rows())
    before = copy.deepcopy(trainer.model.state_dict())
    fit(trainer)
    after = trainer.model.state_dict()
    same = [name for name in before if np.array_equal(before[name], after[name])]
    assert same == ["1.weight"]


@pytest.mark.parametrize("thaws", [True, False])
def test_requires_grad_cannot_be_changed_later(thaws: bool) -> None:
    def build() -> nn.Module:
        model = small()
        next(model.parameters()).requires_grad = not thaws
        return model

    trainer = Trainer(Config(), build, rows())
    next(trainer.model.parameters()).requires_grad = thaws
    with refused("requires_grad of a parameter was changed", "in `build`"):
        trainer.fit()


def test_a_parameter_outside_the_model_is_an_error() -> None:
    """It would be neither saved nor hashed."""
    hidden = nn.Parameter(np.ones(3))

    class Hides(nn.Linear):
        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> Any:
            return super().forward(x) * hidden

    with refused("shape (3,)", "not one of its parameters", "nn.Parameter"):
        Trainer(Config(), lambda: Hides(6, 3), rows())


@pytest.mark.parametrize("options", [{}, {"reproducible": True}, {"servers": 1}], ids=str)
def test_a_parameter_outside_the_model_that_only_training_uses_is_an_error(options: Any) -> None:
    class Shifts(nn.Linear):
        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> Any:
            y = super().forward(x)
            return y + nnmpi.tensor(np.ones(3), requires_grad=True) if self.training else y

    def rank(comm: Comm) -> None:
        Trainer(Config(**options), lambda: Shifts(6, 3), rows(), comm).fit(NullReport())

    with refused("shape (3,)", "neither trained nor saved"):
        threads.run(2, rank)


def test_a_parameter_outside_the_model_that_a_later_step_uses_is_an_error() -> None:
    class Later(nn.Linear):
        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> Any:
            y, now = super().forward(x), current_pass.get()
            is_later = now is not None and now.step == 2
            return y + nnmpi.tensor(np.ones(3), requires_grad=True) if is_later else y

    with refused("shape (3,)", "neither trained nor saved"):
        Trainer(Config(), lambda: Later(6, 3), rows()).fit(NullReport())


def test_an_empty_parameter_may_be_the_last() -> None:
    class Empty(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.nothing = nn.Parameter(np.zeros(0))

        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> Any:
            return super().forward(x) + self.nothing.sum()

    assert Trainer(Config(epochs=1), Empty, rows()).fit()["event"] == "done"


def test_a_loaded_model_equals_the_saved_one(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    first = Trainer(Config(epochs=1, save=path), digits_cnn, images())
    result = fit(first)
    second = Trainer(Config(load=path, seed=8), digits_cnn, images())
    equal(first.model, second.model)
    found = second.evaluate()
    assert (found.mean_loss, found.means["accuracy"]) == (result["test_loss"], result["accuracy"])


def frozen() -> nn.Module:
    model = small()
    for p in model.parameters():
        p.requires_grad = False
    return model


class Pair(nn.Linear):
    def forward(self, x: nnmpi.Tensor, relu: bool = False) -> Any:
        return (super().forward(x), None)


UNUSABLE: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "no model": (lambda: Trainer(Config(), list, rows()), ("model list", "nn.Module", "[]")),
    "nothing to train": (lambda: Trainer(Config(), frozen, rows()), ("frozen", "requires_grad")),
    "a name": (lambda: Trainer(Config(), data="digits"), ("type str", "(x, y)", "Config")),
    "three arrays": (lambda: Trainer(Config(), small, (*rows(), 1)), ("3 arrays", "(x, y)")),
    "features": (lambda: Trainer(Config(), small, rows(features=5)), ("must be 6",)),
    "scores": (lambda: Trainer(Config(), nn.ReLU, images()), ("10 classes",)),
    "no tensor": (lambda: Trainer(Config(), lambda: Pair(6, 3), rows()), ("tensor", "tuple")),
}


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_arguments_are_a_one_line_error(case: Any) -> None:
    call, words = case
    with refused(*words):
        call()
