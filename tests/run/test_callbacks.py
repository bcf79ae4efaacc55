"""Losses, metrics and callbacks of a Trainer: what is told, saved, stopped and refused."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import LAYOUTS, rows, trained
from helpers.training.laws_language import POSITIONS, VOCABULARY, windows

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.io.output.messages import as_text
from nnmpi.metrics import accuracy

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 3)), RNG.standard_normal((40, 2))
LABELS = np.arange(40) % 3


def linear(outputs: int = 2) -> nn.Module:
    return nn.Linear(3, outputs)


def nonlinear() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def trainer(comm: Comm, *callbacks: object, build: Any = linear, **options: Any) -> Trainer:
    config = Config(**{"epochs": 4, "batch_size": 16, "seed": 1, **options})
    return Trainer(config, build, (X, Y), comm, loss=nn.MSELoss(), callbacks=callbacks)


@pytest.mark.parametrize("options", [{}, {"pp": 1, "zero": 3}, {"schedule": "gpipe"}], ids=str)
def test_all_ranks_hear_the_same(options: Any) -> None:
    def job(comm: Comm) -> tuple[Any, Event]:
        heard = list[tuple[str, Event]]()

        def hear(kind: str, trainer: Trainer, event: Event) -> None:
            assert kind != "step" or (event["step"], event["event"]) == (trainer.step, "step")
            heard.append((kind, event))

        hears = {f"on_{kind}": partial(hear, kind) for kind in ("step", "epoch", "end")}
        result = trainer(comm, SimpleNamespace(**hears), **options).fit(NullReport())
        return heard, result

    (events, result), other = threads.run(2, job)
    losses = [(kind, e["loss"]) for kind, e in events]
    assert losses == [(kind, e["loss"]) for kind, e in other[0]]
    assert [kind for kind, _ in events] == ["step", "step", "epoch"] * 4 + ["end"]
    assert events[-1][1] == result
    assert result["event"] == "done"
    assert "accuracy" not in result


class EarlyStop:
    """Ends a run when the test loss has not fallen for so many epochs."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.since = patience, float("inf"), 0

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        self.since += 1
        if event["test_loss"] < self.best:
            self.best, self.since = event["test_loss"], 0
        if self.since >= self.patience:
            trainer.stop()


class SaveBest:
    """Keeps the model with the smallest test loss."""

    def __init__(self, path: str) -> None:
        self.path, self.best = path, float("inf")

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        if event["test_loss"] < self.best:
            self.best = event["test_loss"]
            trainer.save(self.path)


@pytest.mark.parametrize(
    "options",
    [{}, {"zero": 3}, {"sync": "asp"}, {"schedule": "pipedream", "pp": 2, "cut": "1"}],
    ids=str,
)
def test_an_early_stop_and_the_best_so_far(options: Any, tmp_path: Any) -> None:
    """With a rate that grows, the best epoch is not the last one."""
    path = str(tmp_path / "best.safetensors")
    plain: dict[str, Any] = {"dtype": "float64", "batch_size": 32, "seed": 0, "build": nonlinear}
    growing = {"lr": 0.02, "lr_schedule": "step:3:60", "epochs": 40, **options}

    def job(comm: Comm) -> tuple[Event, float]:
        best = SaveBest(path)
        run = trainer(comm, EarlyStop(2), best, **plain, **growing)
        return run.fit(NullReport()), best.best

    found = threads.run(2, job)
    ends = [(event["event"], event["epochs"], best) for event, best in found]
    assert ends[0] == ends[1]
    kind, epochs, best = ends[0]
    assert (kind, 2 < epochs < 40) == ("stopped", True)
    assert best < found[0][0]["test_loss"]
    saved = trainer(comm_self(), load=path, **plain)
    assert saved.evaluate().mean_loss == pytest.approx(best, rel=1e-10)


def test_a_model_is_saved_after_a_step(tmp_path: Any) -> None:
    path = str(tmp_path / "one.safetensors")

    def saves(trainer: Trainer, event: Event) -> None:
        if event["step"] == 1:
            trainer.save(path)

    def job(comm: Comm, **options: Any) -> Event:
        return trainer(comm, SimpleNamespace(on_step=saves), **options).fit(NullReport())

    wanted = trainer(comm_self(), steps=1).fit(NullReport())
    threads.run(3, partial(job, zero=3))
    kept = trainer(comm_self(), load=path)
    assert kept.evaluate().mean_loss == pytest.approx(wanted["test_loss"], rel=1e-5)
    for ranks, options in ((2, {"sync": "asp"}), (1, {"schedule": "pipedream"})):
        with pytest.raises(ValueError, match=r"at different times: call save in on_epoch"):
            threads.run(ranks, partial(job, **options))


@pytest.mark.parametrize("name", ["on_step", "on_epoch", "on_end"])
def test_an_exception_in_a_callback_ends_all_ranks(name: str) -> None:
    def fails(trainer: Trainer, event: Event) -> None:
        if trainer.comm.rank == 1:
            raise KeyError("of the user")

    callback = SimpleNamespace(**{name: fails})
    with pytest.raises(KeyError, match="of the user"):
        threads.run(3, lambda comm: trainer(comm, callback).fit(NullReport()))
    assert threading.active_count() < 4


def mean_error(scores: np.ndarray, targets: np.ndarray) -> tuple[float, int]:
    assert type(scores) is type(targets) is np.ndarray
    return abs(scores - targets).sum(), targets.size


def test_metrics_are_sums_over_counts() -> None:
    run = Trainer(Config(epochs=1), linear, (X, Y), loss=nn.L1Loss(), metrics={"error": mean_error})
    result = run.fit(NullReport())
    assert result["metrics"]["error"] == pytest.approx(result["test_loss"], rel=1e-6)
    text = as_text({**result, "seconds": 1.0})
    assert f"error {result['metrics']['error']:.4g}" in text
    assert "accuracy" not in text


def test_the_accuracy_of_a_function_is_asked_for() -> None:
    def loss(scores: nnmpi.Tensor, labels: np.ndarray) -> nnmpi.Tensor:
        return nn.CrossEntropyLoss()(scores, labels)

    def run(**options: Any) -> Event:
        build = lambda: linear(3)  # noqa: E731
        return Trainer(Config(epochs=2, seed=4), build, (X, LABELS), **options).fit(NullReport())

    own, plain = run(loss=loss, metrics={"accuracy": accuracy}), run()
    assert (own["accuracy"], own["test_loss"]) == (plain["accuracy"], plain["test_loss"])
    assert "metrics" not in own
    assert "accuracy" not in run(loss=loss)
    assert run(metrics={"one": lambda s, y: (len(y), len(y))})["metrics"] == {"one": 1.0}


L1 = nn.L1Loss()
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a class": ({"loss": nn.MSELoss}, ("give an object such as nnmpi.nn.MSELoss()",)),
    "a sum": ({"loss": nn.MSELoss(reduction="sum")}, ("MSELoss has reduction 'sum'",)),
    "no tensor": ({"loss": lambda s, y: 3.0}, ("the loss returned float 3.0", "one element")),
    "no label": ({}, ("float64 of shape", "CrossEntropyLoss takes", "loss=nnmpi.nn.MSELoss()")),
    "shape": ({"loss": L1, "data": (X, Y[:, 0])}, ("scores of shape (2, 2)", "of (2,)")),
    "one element": (
        {"loss": L1, "metrics": {"mae": lambda s, y: 0.5}},
        ("metric mae returned 0.5", "(errors.sum(), len(labels))"),
    ),
    "callback": ({"loss": L1, "callbacks": [print]}, ("print", "on_evaluate, on_epoch, on_end")),
    "metrics in a list": ({"loss": L1, "metrics": [len]}, ("metrics is a list", "'error'")),
    "one callback": (
        {"loss": L1, "callbacks": EarlyStop(2)},
        ("callbacks is a EarlyStop", "a list"),
    ),
}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_misuse_gives_one_line(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        Trainer(Config(epochs=1), linear, **{"data": (X, Y), **given}).fit(NullReport())


def confusion(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """The share of samples of each class that the model takes for each class."""
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (labels, scores.argmax(1)), 1)
    return matrix, len(labels)


def recall(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each class; there is no sample of a fourth one."""
    of = np.bincount(labels, minlength=4)
    return np.bincount(labels[scores.argmax(1) == labels], minlength=4), of


METRICS = {"confusion": confusion, "recall": recall, "size": lambda s, y: (len(y), len(y))}

OF_METRICS: dict[str, tuple[int, dict[str, Any]]] = {
    **LAYOUTS,
    "a rank without samples": (8, {"batch_size": 5}),
    "servers": (3, {"sync": "bsp", "servers": 1}),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", OF_METRICS.values(), ids=OF_METRICS)
def test_every_layout_adds_up_arrays(layout: tuple[int, dict[str, Any]]) -> None:
    small_batch = {name: n for name, n in layout[1].items() if name == "batch_size"}
    alone, found = (trained(*one, metrics=METRICS)[0] for one in ((1, small_batch), layout))
    assert found["metrics"] == alone["metrics"]
    matrix = np.array(found["metrics"]["confusion"])
    assert matrix.shape == (3, 3)
    assert matrix.sum() == pytest.approx(1)
    assert np.trace(matrix) == pytest.approx(found["accuracy"])
    assert found["metrics"]["recall"][3] == 0
    assert found["metrics"]["size"] == 1


SHARED: tuple[dict[str, Any], ...] = (
    {"dp": 2, "cp": 2},
    {"tp": 2, "cp": 2},
    {"dp": 2, "pp": 2, "micro_batches": 2},
    {"dp": 2, "tp": 2},
)


@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_each_sample_counts_once_and_each_token(layout: dict[str, Any]) -> None:
    """Of ranks that have parts of the same sequences one counts them."""
    few = windows(17)

    def rank(comm: Comm) -> None:
        build = partial(nn.GPT, 2, 2, 8, VOCABULARY, POSITIONS)
        config = Config(**layout, epochs=1, batch_size=4)
        with Trainer(config, build, few, comm) as trainer:
            found = trainer.evaluate()
            assert (found.samples, found.divisor) == (len(few.test.y), few.test.y.size)

    threads.run(4, rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_metric_has_one_shape(ranks: int) -> None:
    def by_largest(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
        return np.bincount(labels), len(labels)

    x, y = rows()
    data = x, y, np.repeat(x[:1], 4, axis=0), np.array([0, 1, 1, 2])
    with pytest.raises(ValueError, match=r"metric n returned sums of the shapes \(.,\) and \(.,\)"):
        trained(ranks, {"batch_size": 2}, data=data, metrics={"n": by_largest})
