"""Samples of any kind from a Trainer and from a file: what fits, what is refused, what is saved."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.commands import Command
from helpers.datafiles import refused
from helpers.runs import equal, fit, small
from helpers.training.laws_goals import (
    GOALS,
    NEXT,
    WORDS,
    Joined,
    X,
    of_each_word,
    of_several,
    of_words,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.planning.run.dry_run import dry_run
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Standardiser
from nnmpi.data.inputs import Inputs, each, parts
from nnmpi.run.setup.setup import TrainerArguments, set_up

Y = NEXT[:, 0] % 4
SEVERAL = {"tuple": (WORDS, X), "dict": {"table": X, "words": WORDS}}
ONE_HOT = np.eye(4, dtype=int)[Y]


def several() -> nn.Module:
    return of_several(4)


def trainer(x: Any, y: Any, build: Callable[[], nn.Module], **options: Any) -> Trainer:
    return Trainer(Config(steps=1, **options), build, (x, y))


def repeated(x: Inputs) -> Inputs:
    """Other samples of the same kind, with other means."""
    return each(lambda array: array if array.dtype.kind == "i" else array * 2 + 1, x)


@pytest.mark.parametrize("x", SEVERAL.values(), ids=SEVERAL)
def test_a_model_of_several_inputs_is_saved_and_loaded(x: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "m")
    first = trainer(x, Y, several, save=path)
    fit(first)
    again = trainer(repeated(x), Y, several, load=path)
    for a, b in zip(parts(first.standardiser.mean), parts(again.standardiser.mean), strict=True):
        assert a[0] == b[0]
        np.testing.assert_array_equal(a[1], b[1])
    state, metadata = nnmpi.load(path, with_metadata=True)
    model = several()
    model.load_state_dict(state)
    seen = Standardiser.from_metadata(metadata).apply(x)
    arguments = list(seen.values()) if isinstance(seen, dict) else seen
    wanted = first.standardiser.apply(x)
    for a, b in zip(arguments, [part for _, part in parts(wanted)], strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    scores = model(**seen) if isinstance(seen, dict) else model(*seen)
    assert scores.shape == (len(Y), 4)
    with refused(f"--load {path}", "one array"):
        trainer(X, Y, several, load=path)


def test_a_model_of_indices_is_saved_and_loaded(tmp_path: Any) -> None:
    path = str(tmp_path / "m")
    first = trainer(WORDS, Y, lambda: of_words(4), save=path)
    fit(first)
    equal(first.model, trainer(WORDS, Y, lambda: of_words(4), load=path).model)
    with refused("trained on indices", "float32", "astype('int64')"):
        trainer(WORDS / 2, Y, lambda: of_words(4), load=path)


UNUSABLE: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "integers as features": (lambda: trainer(WORDS, Y % 3, small), ("x.astype('float32')",)),
    "features as indices": (
        lambda: trainer(WORDS / 2, Y, lambda: of_words(4)),
        ("samples are of shape 6", "must be integers, not float32", "x.astype('int64')"),
    ),
    "one input too few": (
        lambda: trainer(X, Y, several),
        ("Joined.forward", "missing a required argument: 'table'"),
    ),
    "one input too many": (lambda: trainer((WORDS, X, X, X), Y, several), ("of shape 6 (x.0)",)),
    "another name": (lambda: trainer({"words": WORDS, "tables": X}, Y, Joined), ("'table'",)),
    "single numbers": (lambda: trainer(X[:, 0], Y, small), ("of shape () (x[:, None]", "axis 1")),
    "one-hot labels": (lambda: trainer(X, ONE_HOT, several_of_x), ("one-hot", "y.argmax(1)")),
    "classes last": (
        lambda: trainer(WORDS, NEXT % 4, lambda: of_each_word(4)[:-1]),
        ("shape (6, 4)", "each of 6 positions", "must be (classes, 6)", "transpose"),
    ),
    "labels of positions, scores of samples": (
        lambda: trainer(WORDS, NEXT % 4, lambda: of_words(4)),
        ("shape (4,)", "4 classes", "must be (classes, 6)"),
    ),
}


def several_of_x() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4))


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE)
def test_what_does_not_fit_is_a_one_line_error(case: Any) -> None:
    call, words = case
    with refused(*words):
        call()


def test_labels_of_several_classes_may_look_one_hot() -> None:
    """A function takes them, and so does a loss of positions whose scores fit."""
    squares = lambda scores, y: ((scores - y) ** 2).mean()  # noqa: E731
    assert fit(Trainer(Config(steps=1), several_of_x, (X, ONE_HOT), loss=squares))["steps"] == 1
    build = lambda: nn.Sequential(nn.Embedding(15, 4))  # noqa: E731  (N, 6, 4): 6 classes
    assert fit(trainer(WORDS, ONE_HOT, build))["steps"] == 1


@pytest.mark.parametrize("name", ["embedding", "words", "a tuple", "a dict", "positions"])
def test_a_dry_run_of_any_samples(name: str) -> None:
    goal = GOALS[name]

    def rank(comm: Comm, options: dict[str, Any]) -> Any:
        config, build = Config(batch_size=6, **options), partial(goal.net, goal.outputs)
        given = TrainerArguments(build, (goal.x, goal.y), goal.loss())
        return dry_run(set_up(config, comm, given), comm)

    arrays = [array for _, array in parts(goal.x)]
    size = sum(array.size * (4 if array.dtype.kind == "f" else 8) for array in (*arrays, goal.y))
    size += goal.y.size * 4 * (goal.y.dtype.kind == "f")  # targets keep their type
    for options in ({}, {"pp": 2}, {"tp": 2}):
        if goal.shards or "tp" not in options:
            found = threads.run(2, rank, options)[0]
            assert found["data_bytes"] == size
            assert all(kind["activation_bytes"] > 0 for kind in found["kinds"])


def test_the_command_trains_on_several_inputs_of_a_file(command: Command) -> None:
    with open("joined.py", "w") as file:
        file.write(
            "from nnmpi import nn\n"
            "class Joined(nn.Module):\n"
            "    def __init__(self):\n"
            "        self.embed, self.table = nn.Embedding(15, 4), nn.Linear(5, 4)\n"
            "    def forward(self, words, table):\n"
            "        return self.embed(words).mean(1) + self.table(table)\n"
        )
    for first, second in (("words", "table"), ("0", "1")):
        np.savez("several.npz", y=Y, **{f"x.{first}": WORDS, f"x.{second}": X})
        done = command("--model", "joined:Joined", "--data", "several.npz", "--steps", "2")
        assert done.status == 0
        assert f"integers are indices, not standardised (x.{first})" in done.events[0]["note"]
        assert done.events[-1]["event"] == "done"
    np.savez("several.npz", y=Y, **{"x.words": WORDS, "x.tables": X})
    done = command("--model", "joined:Joined", "--data", "several.npz")
    assert done.status == 2
    assert "Joined.forward: " in done.err
    assert done.err.count("\n") == 1
