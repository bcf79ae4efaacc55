"""Replayed passes train with the bits of the tape, or run by the tape and say why."""

import re
import tomllib
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.graph_models import GRAPH_MODELS
from helpers.training.laws_language import VOCABULARY, windows
from helpers.training.pipelined import Heard, Ran, contents, digits, run
from helpers.training.transformer_models import Decoder

from nnmpi import Config, Trainer, data, nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset, Split
from nnmpi.io.output import Event
from nnmpi.options.collector import gc_paused
from nnmpi.parallel.step import recordable_stage, stage_lists
from nnmpi.parallel.step.objective import LossAndMetrics
from nnmpi.parallel.step.recorded_wires import Notes
from nnmpi.parallel.step.stage_lists import StageLists

rng = np.random.default_rng(0)
DECODER = partial(Decoder, VOCABULARY, 16, heads=2, width=16, dropout=0.2)
BUILT: dict[str, dict[str, Any]] = {
    "decoder": {"build": DECODER, "given": partial(windows, 30, 16)},
    "again": {"build": GRAPH_MODELS["residual cnn"]},
}
"""What else the bases of the table have."""
TABLE = tomllib.loads(Path(__file__).with_name("replays.toml").read_text(encoding="utf-8"))


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    """The options of a row, and of the bases that it names."""
    options = dict[str, Any]()
    for base in row.get("of", "").split():
        options |= options_of(TABLE["bases"][base]) | BUILT.get(base, {})
    own = {name: value for name, value in row.items() if name not in ("of", "ranks", "says")}
    return options | own


CNN = options_of({"of": "cnn"})


Stages = Callable[[], list[StageLists]]


def few(spec: str) -> Dataset:
    whole = data.load(spec)
    return whole._replace(
        train=Split(whole.train.x[:60], whole.train.y[:60]),
        test=Split(whole.test.x[:9], whole.test.y[:9]),
    )


def with_data(row: dict[str, Any]) -> dict[str, Any]:
    """The options of a row, and its data unless they are digits."""
    options = options_of(row)
    if "given" in options:
        return options | {"given": options["given"]()}
    return options | ({"given": few(options["data"])} if "data" in options else {})


def same_bits(a: Ran, b: Ran) -> None:
    assert a.losses == b.losses
    for name, array in a.state.items():
        assert array.tobytes() == b.state[name].tobytes(), name
    for name, part in a.gradients.items():
        assert part.numbers.tobytes() == b.gradients[name].numbers.tobytes(), name


@pytest.mark.parametrize("name", TABLE["runs"])
def test_replayed_passes_have_the_bits_of_the_tape(name: str, stages: Stages) -> None:
    how = with_data(TABLE["runs"][name])
    tape, replayed = (run(comm_self(), **how, compile=on) for on in (False, True))
    same_bits(replayed, tape)
    (lists,) = stages()
    assert lists.reason is None
    assert lists.replays > len(tape.losses) / 4  # a last batch may be another one


@pytest.mark.parametrize("name", TABLE["ranks"])
def test_ranks_have_the_bits_of_the_tape(name: str, stages: Stages) -> None:
    row = TABLE["ranks"][name]
    ranks, how = row["ranks"], with_data(row)

    def both(comm: Comm) -> None:
        same_bits(*(run(comm, **how, compile=on) for on in (True, False)))

    threads.run(ranks, both)
    assert len(stages()) >= ranks
    assert {lists.reason for lists in stages()} == {None}
    assert all(lists.replays for lists in stages())


@pytest.mark.parametrize("name", TABLE["by tape"])
def test_other_ranks_run_by_the_tape(name: str, stages: Stages) -> None:
    row = TABLE["by tape"][name]
    threads.run(row["ranks"], lambda comm: run(comm, **options_of(row), compile=True))
    assert all(row["says"] in (lists.reason or "") for lists in stages())
    assert not any(lists.replays for lists in stages())


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, 10),
    )


class Own(nn.Module):
    """A module that is not nnmpi's own."""

    def __init__(self) -> None:
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def loss_of_own(y: Tensor, target: Any) -> Tensor:
    return nn.functional.cross_entropy(y, target)


@pytest.mark.parametrize(
    ("build", "loss", "name"),
    [(layers, None, None), (Own, None, "Own"), (layers, loss_of_own, "loss_of_own")],
)
def test_code_of_users_is_replayed_where_that_is_asked_for(
    build: Callable[[], nn.Module], loss: Any, name: str | None, stages: Stages
) -> None:
    for on, reason in (
        (None, name and f"{name} is not nnmpi's own code; --compile replays it too"),
        (True, None),
    ):
        with Trainer(
            Config(compile=on, epochs=1, batch_size=16), build, digits(), comm_self(), loss=loss
        ) as t:
            t.fit(Heard())
        lists = stages()[-1]
        assert (lists.reason, lists.replays > 0) == (reason, reason is None)


@pytest.mark.parametrize("wrapped", [False, True])
def test_functions_of_users_in_layers_are_code_of_users(wrapped: bool, stages: Stages) -> None:
    scale = [1.0]

    def activation(x: Tensor) -> Tensor:
        return x.tanh() * scale[0]

    if wrapped:  # which gives it the name and module of nnmpi's function
        activation = wraps(nn.functional.relu)(activation)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 10))

    words = rng.standard_normal((100, 8, 8)), np.arange(100) % 10
    reasons = (
        "TransformerEncoderLayer.activation is not nnmpi's own code; --compile replays it too",
        "scale in TransformerEncoderLayer.activation is a list, which may change without notice",
    )
    for on, reason in zip((None, True), reasons, strict=True):
        run(comm_self(), build, (*words, *words), compile=on)
        assert (stages()[-1].reason, stages()[-1].replays) == (reason, 0)


def test_weights_of_classes_are_compared(stages: Stages) -> None:
    def losses(on: bool | None) -> list[float]:
        loss = nn.CrossEntropyLoss(weight=np.ones(10))

        def change(model: Any) -> None:
            loss.weight[3] += 1.0

        config = Config(epochs=3, batch_size=24, compile=on)
        made = Trainer(
            config, layers, digits(), comm_self(), loss=loss, callbacks=[Changes(change)]
        )
        heard = Heard()
        made.fit(heard)
        return heard.losses

    assert losses(None) == losses(False)
    assert stages()[0].replays > 0


def test_passes_are_not_replayed_where_memory_is_short(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordable_stage, "memory_available", lambda: 100_000)
    run(comm_self(), **CNN)
    (lists,) = stages()
    assert (lists.replays, lists.memory.size) == (0, 0)
    why = r"of 100,000 bytes that are free on the node, a rank would need [\d,]+ more to .*"
    assert re.fullmatch(why, lists.reason or "")


def test_replays_have_no_memory_while_a_model_is_evaluated(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[tuple[int, int]]()
    add = LossAndMetrics.add

    def noted(sums: LossAndMetrics, scores: Tensor, batch: Any) -> None:
        sizes.append((stages()[0].memory.size, len(stages()[0].compared)))
        add(sums, scores, batch)

    monkeypatch.setattr(LossAndMetrics, "add", noted)
    monkeypatch.setattr(stage_lists, "LITTLE", 0)
    with Trainer(Config(**CNN, batch_size=24), None, digits(), comm_self()) as trainer:
        trainer.fit(Heard())
        assert {size for size, _ in sizes} == {0}
        assert sizes[-1][1] > 0
        for _ in range(2):  # by the tape, and compared with it
            next(trainer.strategy.steps(trainer.train, trainer.state))
        memory = stages()[0].memory
        with gc_paused():  # nothing waits for the collector
            tracemalloc.start()
            memory.clear()
            next(trainer.strategy.steps(trainer.train, trainer.state))
            taken, size = tracemalloc.get_traced_memory()[0], memory.size
            memory.clear()
            left = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
        assert size > 0
        assert taken - left >= size


class Changes:
    """Changes the model after an epoch as `change` does."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        self.change = change

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        self.change(trainer.model)


def trained(build: Callable[[], nn.Module], change: Callable[[Any], object], on: bool) -> Any:
    config = Config(epochs=3, batch_size=24, dtype="float64", compile=on)
    trainer = Trainer(config, build, digits(), comm_self(), callbacks=[Changes(change)])
    heard = Heard()
    trainer.fit(heard)
    return heard.losses, {name: a.tobytes() for name, a in contents(trainer).items()}


def hook(model: Any) -> None:
    model[1].register_forward_hook(lambda module, args, y: y * 2)


def hooked() -> nn.Module:
    model = layers()
    hook(model)
    return model


@pytest.mark.parametrize(
    ("build", "change", "replays"),
    [(hooked, lambda model: None, False), (layers, hook, True)],
    ids=["from the start", "after an epoch"],
)
def test_layers_with_hooks_run_by_the_tape(
    build: Callable[[], nn.Module], change: Callable[[Any], object], replays: bool, stages: Stages
) -> None:
    assert trained(build, change, True) == trained(build, change, False)
    (lists,) = stages()
    assert lists.reason == "Linear has hooks"
    assert bool(lists.replays) is replays


def changed_losses(
    build: Callable[[], nn.Module],
    on: bool,
    loss: Any = None,
    change: Callable[[Any, int], object] = lambda model, step: None,
    **options: Any,
) -> list[list[float]]:
    """The losses that each rank hears of, of 55 samples in batches; a callback changes the model
    after each step."""

    class Listens:
        def __init__(self) -> None:
            self.losses = list[float]()

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.losses.append(event["loss"])
            change(trainer.model, event["step"])

    whole = digits()
    given = whole._replace(train=Split(whole.train.x[:55] / 16, whole.train.y[:55]))
    ranks = options.get("pp", 1)
    plain = {"steps": 8, "epochs": 2, "optimizer": "sgd", "dtype": "float64", "quiet": True}

    def rank(comm: Comm) -> list[float]:
        heard, config = Listens(), Config(**{**plain, "compile": on, **options})
        with Trainer(config, build, given, comm, callbacks=[heard], loss=loss) as trainer:
            trainer.fit()
        return heard.losses

    return threads.run(ranks, rank)


class Experts(nn.Module):
    """Its layer of experts reads the number of samples of the whole batch."""

    def __init__(self) -> None:
        self.a, self.out = nn.Linear(64, 16), nn.Linear(16, 10)
        self.experts = nn.MixtureOfExperts(16, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.experts(self.a(x.reshape(len(x), 64)).reshape(len(x), 1, 16))
        return self.out(y.reshape(len(x), 16))


def test_a_micro_batch_of_a_shorter_batch_is_another_pass(stages: Stages) -> None:
    options = {"batch_size": 14, "micro_batches": 2, "lr": 0.5}
    tape, replayed = (changed_losses(Experts, on, **options) for on in (False, True))
    assert replayed == tape
    assert stages()[0].replays


class Skips(nn.Module):
    """What is zero at first passes by the stages in between."""

    def __init__(self) -> None:
        self.a, self.b, self.c = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.d = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x.reshape(len(x), 64))
        late = nn.functional.relu(first - 50.0)
        return self.d(self.c(self.b(first)) + late)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_what_passes_by_a_stage_is_passed_on(schedule: str, stages: Stages) -> None:
    def wake(model: Any, step: int) -> None:
        with suppress(ValueError):  # of ranks without that layer
            model.a.bias.data[...] = 100.0 if step > 3 else 0.0

    options = {"pp": 4, "cut": "1,2,3", "micro_batches": 3, "schedule": schedule, "lr": 1e-4}
    options |= {"batch_size": 24, "change": wake}
    tape, replayed = (changed_losses(Skips, on, **options) for on in (False, True))
    assert replayed == tape
    assert {lists.reason for lists in stages()} == {None}


def test_a_loss_of_the_user_is_looked_at(stages: Stages) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            self.inner, self.weight = nn.CrossEntropyLoss(), 1.0

        def forward(self, y: Tensor, labels: Any) -> Tensor:
            return self.inner(y, labels) * self.weight

    def both(make: Callable[[], tuple[Any, Callable[[Any, int], object]]]) -> str | None:
        found = []
        for on in (False, True):
            loss, change = make()
            options = {"loss": loss, "change": change, "batch_size": 16}
            found.append(changed_losses(lambda: nn.Sequential(*layers()), on, **options))
        assert found[0] == found[1]
        return stages()[-1].reason

    def module() -> tuple[Any, Callable[[Any, int], object]]:
        loss = Weighted()
        return loss, lambda model, step: setattr(loss, "weight", 1.0 + step)

    def function() -> tuple[Any, Callable[[Any, int], object]]:
        weight = 1.0

        def change(model: Any, step: int) -> None:
            nonlocal weight
            weight += 1

        return lambda y, labels: nn.functional.cross_entropy(y, labels) * weight, change

    def table() -> tuple[Any, Callable[[Any, int], object]]:
        known = {"weight": 1.0}
        change = lambda model, step: known.update(weight=1.0 + step)  # noqa: E731
        return lambda y, labels: nn.functional.cross_entropy(y, labels) * known["weight"], change

    def counter() -> tuple[Any, Callable[[Any, int], object]]:
        class Counts(Weighted):
            def forward(self, y: Tensor, labels: Any) -> Tensor:
                self.weight += 1
                return super().forward(y, labels)

        return Counts(), lambda model, step: None

    assert both(module) is None
    assert both(function) is None
    assert "is a dict, which may change without notice" in str(both(table))
    assert both(counter) == "forward sets an attribute"


def test_exchanges_that_are_not_those_of_the_tape_are_noticed() -> None:
    """Other bits, another exchange, or one less."""

    def beside(sent: list[Any], arrived: int, other: list[Any], read: int) -> bool:
        notes = Notes()
        for array in sent:
            notes.add_sent(array)
        for _ in range(arrived):
            notes.add(np.ones(2))
        for array in other:
            notes.check_sent(array)
        for _ in range(read):
            notes.write_next(np.empty(2))
        return notes.is_same

    a, b = np.zeros(2), np.array([0.0, -0.0])
    assert beside([a, b], 2, [a, b], 2)
    assert not beside([a], 1, [b], 1)
    assert not beside([a, b], 1, [a], 1)
    assert not beside([a], 1, [a, b], 1)
    assert not beside([a], 2, [a], 1)
    assert not beside([a], 1, [a], 2)


def test_micro_batches_that_use_other_parameters_run_by_the_tape(stages: Stages) -> None:
    class Extra(nn.Module):
        def __init__(self) -> None:
            self.a, self.b, self.c = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x.reshape(len(x), 64))
            return self.c(self.b(y) if len(x) < 6 else y)

    options = {"batch_size": 24, "micro_batches": 3}
    tape, replayed = (changed_losses(Extra, on, **options) for on in (False, True))
    assert replayed == tape
    assert stages()[0].reason == "micro-batches use different parameters"


def test_labels_that_are_ignored_run_by_the_tape(stages: Stages) -> None:
    """Which labels are ignored is not known when a pass is recorded."""
    whole = digits()
    labels = np.where(np.arange(len(whole.train.y)) % 7, whole.train.y, -100)
    given = whole._replace(train=Split(whole.train.x, labels))
    tape, replayed = (run(comm_self(), None, given, **CNN, compile=on) for on in (False, True))
    same_bits(replayed, tape)


def test_a_wrong_label_is_named(stages: Stages) -> None:
    whole = digits()
    labels = whole.train.y.copy()
    labels[-1] = 10
    given = whole._replace(train=Split(whole.train.x, labels))
    with pytest.raises(ValueError, match="labels from 0 to 10 for 10 classes"):
        run(comm_self(), None, given, **CNN, compile=True)
