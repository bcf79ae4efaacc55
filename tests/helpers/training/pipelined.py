"""Runs on a few digits in any layout, and what they are compared with."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.once import by_first, once

from nnmpi import Config, Trainer, data, nn
from nnmpi.arrays.backend import Array, to_host
from nnmpi.comm import Comm, comm_self
from nnmpi.data import Dataset, Split
from nnmpi.io.output import Event, Report
from nnmpi.nn.state import which_held
from nnmpi.parallel.model.whole import first_difference
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.schedules import pipeline

BOUND = 1e-10  # in float64, after ten steps
IN_V = ("zb-v", "v-half", "dualpipe-v")
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", *IN_V)
RECOMPUTED = ("gpipe", "1f1b", "interleaved", "zb-h1", *IN_V)
ROWS = 100  # batches of 24 and one of 4, which has fewer than 5 micro-batches

MLP: dict[str, Any] = {
    "model": "mlp:64-48-40-32-24-10",
    "optimizer": "sgd",
    "momentum": 0.8,
    "lr": 0.05,
    "weight_decay": 0.01,
    "clip_norm": 0.5,
}
CNN = {"model": "digits-cnn"}
MODELS = {"mlp": MLP, "digits-cnn": CNN}
LAYOUTS = {1: [(1, 1)], 2: [(1, 2)], 3: [(1, 3)], 4: [(1, 4), (2, 2)]}
"""(dp, pp) by the number of ranks."""

Options = dict[str, Any]


@once
def digits() -> Dataset:
    """A few of them, which all tests of a process share: they cannot be changed."""
    whole = data.load("digits")
    few = Split(whole.train.x[:ROWS], whole.train.y[:ROWS])
    dataset = whole._replace(train=few, test=Split(whole.test.x[:31], whole.test.y[:31]))
    for split in (dataset.train, dataset.test):
        for array in (split.x, split.y):
            array.flags.writeable = False
    return dataset


class Heard(Report):
    """Keeps the events but those that tell whether passes are replayed, and the loss of every
    step."""

    describes_ranks = False

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.events: list[Event] = []
        self.losses: list[float] = []

    def event(self, event: Event) -> None:
        if event["event"] != "passes":
            self.events.append(event)

    def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        self.losses.append(loss)


class Noted(Heard):
    """Calls `after` with the number of steps, too."""

    def __init__(self, after: Callable[[int], object] = lambda step: None) -> None:
        super().__init__()
        self._after = after

    def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        super().progress(step, total, loss, samples_per_second)
        self._after(step)


class Part(NamedTuple):
    """The part of a tensor that a rank has."""

    slices: tuple[slice, ...]
    numbers: np.ndarray


class Ran(NamedTuple):
    """What came out of a run: the whole model on every rank, and its parts of the last gradient."""

    events: list[Event]
    losses: list[float]
    state: Mapping[str, np.ndarray]
    gradients: Mapping[str, Part]

    @property
    def done(self) -> Event:
        return self.events[-1]


def run(
    comm: Comm,
    build: Callable[[], nn.Module] | None = None,
    given: Dataset | Callable[[], Dataset] = digits,
    **options: Any,
) -> Ran:
    """Ten steps in float64, two epochs, if nothing else is asked for; copies have equal bits.

    They are of digits, unless other data are given, or a function that makes them.
    """
    plain: Options = {"dtype": "float64", "epochs": 2, "batch_size": 24}
    samples = given() if callable(given) else given
    trainer, heard = Trainer(Config(**plain | options), build, samples, comm), Heard()
    trainer.fit(heard)
    assert first_difference(trainer.session.part, trainer.comm) is None
    return Ran(heard.events, heard.losses, contents(trainer), gradients(trainer))


@once
def one_rank(options: tuple[tuple[str, Any], ...]) -> Ran:
    """The same on one rank, once a process."""
    return run(comm_self(), **dict(options))


def reference(comm: Comm, **options: Any) -> Ran:
    return by_first(comm, lambda: one_rank(tuple(sorted(options.items()))))


def distance(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """The largest relative difference of two tensors of the same name."""
    assert a.keys() == b.keys()
    return max(float(abs(a[k] - b[k]).max() / max(abs(b[k]).max(), 1e-300)) for k in a)


def same_on_all(comm: Comm, text: str) -> bool:
    """Whether all ranks bring the same text."""
    own = np.frombuffer(text.encode()[:64].ljust(64), np.uint8)
    rows = np.empty((comm.size, 64), np.uint8)
    rows[comm.rank] = own
    comm.all_gather(rows)
    return bool((rows == own).all())


def equals(comm: Comm, got: Ran, wanted: Ran) -> None:
    """Parameters, buffers, the last gradient, the loss of every step, and all evaluations."""
    assert distance(got.state, wanted.state) < BOUND
    largest = max(abs(part.numbers).max() for part in wanted.gradients.values())
    for path, (slices, numbers) in got.gradients.items():
        expected = wanted.gradients[path].numbers[slices]
        np.testing.assert_allclose(numbers, expected, rtol=0, atol=BOUND * largest, err_msg=path)
    assert got.losses == pytest.approx(wanted.losses, rel=BOUND)
    assert len(got.losses) == 10
    for ours, theirs in zip(got.events[1:], wanted.events[1:], strict=True):
        for name in {"loss", "test_loss"} & theirs.keys():
            assert ours[name] == pytest.approx(theirs[name], rel=BOUND)
        for name in ("event", "accuracy", "steps", "epochs", "skipped_steps"):
            assert ours.get(name) == theirs.get(name), name
    assert same_on_all(comm, got.done["parameters_sha256"])


def trains_as_one_rank(layout: Options, case: Options, comm: Comm) -> None:
    """What is trained, in a layout, as on one rank; functions in it are those of a module."""
    equals(comm, run(comm, **case, **layout), reference(comm, **case))


def is_same(got: Ran, wanted: Ran) -> None:
    """All bits are equal."""
    assert got.losses == wanted.losses
    for name in ("test_loss", "parameters_sha256"):
        assert got.done[name] == wanted.done[name], name
    assert got.state.keys() == wanted.state.keys()
    for name, array in got.state.items():
        np.testing.assert_array_equal(array, wanted.state[name], err_msg=name, strict=True)


def layouts(comm: Comm) -> list[Options]:
    return [{"dp": dp, "pp": pp} for dp, pp in LAYOUTS[comm.size]]


def stages_a_rank(schedule: str) -> int:
    """The number of stages of a rank, unless another one is asked for."""
    return pipeline.SCHEDULES[schedule].stages_a_rank(2)


def case_for(schedule: str, case: Options, pp: int) -> Options:
    """The case, or a deeper model where the schedule has more stages than that has layers."""
    stages = pp * stages_a_rank(schedule)
    widths = "-".join(str(40 - k) for k in range(stages - 1))
    return {**MLP, "model": f"mlp:64-{widths}-10"} if stages > 5 else case


def without_clipping(case: Options) -> Options:
    """The norm of all gradients is a sum over stages, whose order changes its bits."""
    return {**case, "clip_norm": None}


def contents(trainer: Trainer) -> dict[str, np.ndarray]:
    """The whole model, on every rank."""
    return {name: a.copy() for name, a in trainer.strategy.full_state.on_all_ranks()}


def gradients(trainer: Trainer) -> dict[str, Part]:
    """This rank's parts of the gradient of the last step, by parameter; every rank calls it."""
    tensors = [*trainer.model.tensors()]
    held = which_held(tensors, trainer.session.part.held)
    return {
        place.path: Part(place.slices, to_host(_whole_gradient(p)).copy())
        for (place, p), is_held in zip(tensors, held, strict=True)
        if is_held and isinstance(p, nn.Parameter) and p.has_grad
    }


def _whole_gradient(p: nn.Parameter) -> Array:
    sums = isinstance(p.store, LocalStore)
    return p.store.whole_gradient(p.index) if sums else p.grad_memory
