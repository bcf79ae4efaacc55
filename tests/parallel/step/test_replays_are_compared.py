"""All that decides what a pass computes is in the key of its recording, and a recording that
computes otherwise than the pass as written is never replayed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.training.pipelined import Heard, contents, digits

import nnmpi
from nnmpi import Config, Trainer, nn, ones, optim, seeded
from nnmpi.addons.compile import compiled
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.step import recordable_stage
from nnmpi.parallel.step.beside_tape import Compared
from nnmpi.parallel.step.stage_lists import ReplayedStages

TEXT: dict[str, Any] = {
    "data": "text:README.md",
    "context": 8,
    "batch_size": 16,
    "steps": 9,
    "dropout": 0.5,
    "quiet": True,
}


def reasons(stages: Sequence[ReplayedStages]) -> set[str | None]:
    return {lists.reason for stage in stages for lists in stage.lists.values()}


class Follows:
    """A callback: keeps all losses, and changes the model after some steps."""

    def __init__(self, changes: Sequence[Callable[[Any], object]] = (), every: int = 4) -> None:
        self.changes, self.every = changes, every
        self.losses = list[float]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])
        which, after = divmod(event["step"], self.every)
        if not after and which <= len(self.changes):
            self.changes[which - 1](trainer.model)


def trained(
    build: Callable[[], nn.Module], on: bool, ranks: int = 1, follows: Any = Follows, **options: Any
) -> list[tuple[list[float], dict[str, bytes]]]:
    plain = {"batch_size": 16, "steps": 12, "epochs": 99, "dtype": "float64", "lr": 0.1}
    config = Config(**{**plain, "compile": on, **options})

    def rank(comm: Comm) -> tuple[list[float], dict[str, bytes]]:
        heard = follows()
        with Trainer(config, build, digits(), comm, callbacks=[heard]) as trainer:
            trainer.fit(NullReport())
            return heard.losses, {k: a.tobytes() for k, a in contents(trainer).items()}

    return threads.run(ranks, rank)


# ---- the key


def layers() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2)),
        *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)),
    )


CHANGES: tuple[Callable[[Any], object], ...] = (
    lambda model: setattr(model[4], "p", 0.5),
    lambda model: setattr(model[2].running_mean, "data", model[2].running_mean * 0 + 1),
    lambda model: setattr(model[6], "running_var", model[6].running_var + 3),
    lambda model: model[2].eval(),
    lambda model: model[5].weight.requires_grad_(False),
    lambda model: model[2].train(),
    lambda model: model[6].running_mean.mul_(0.5),
    lambda model: model[1].weight.data.__imul__(2),
    lambda model: model[5].requires_grad_(True),
    lambda model: model[6].eval(),
    lambda model: setattr(model[6].running_mean, "data", ones(8, dtype=model[1].weight.dtype)),
    lambda model: setattr(model, "3", nn.ReLU()),
)


def test_what_changes_between_steps_is_in_the_key(made: list[ReplayedStages]) -> None:
    """One change after the other; between two of them passes are recorded, compared, replayed."""
    steps = 4 * (len(CHANGES) + 1)
    wanted, found = (
        trained(layers, on, follows=lambda: Follows(CHANGES), steps=steps, dp=1)
        for on in (False, True)
    )
    assert found == wanted
    assert reasons(made) == {None}
    assert sum(lists.replays for stage in made for lists in stage.lists.values()) > len(CHANGES)


def test_how_many_samples_others_have_is_in_the_key(made: list[ReplayedStages]) -> None:
    """Of 9 and of 10 samples on three ranks the first has three; statistics are of all."""
    options = {"batch_size": 28, "micro_batches": 3, "allreduce": "ring", "dp": 3}
    assert trained(layers, True, 3, **options) == trained(layers, False, 3, **options)
    assert reasons(made) == {None}


class Scaled(nn.Module):
    """Reads an attribute of its class, and changes it in an evaluation."""

    scale = 1.0

    def __init__(self) -> None:
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            Scaled.scale = 2.0
        return self.layers(x) * Scaled.scale


def test_what_an_evaluation_changes_is_noticed(
    made: list[ReplayedStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scaled, "scale", 1.0)
    found = list[list[float]]()
    for on in (False, True):
        options: dict[str, Any] = {"evaluate_every": 6, "epochs": 1, "batch_size": 8}
        with Trainer(Config(**options, quiet=True, compile=on), Scaled, digits()) as trainer:
            Scaled.scale, report = 1.0, Heard()  # the recording of the graph has changed it
            trainer.fit(report)
        found.append(report.losses)
    assert found[1] == found[0]
    assert sum(lists.replays for stage in made for lists in stage.lists.values()) > 4


def test_what_changes_between_two_runs_is_noticed(made: list[ReplayedStages]) -> None:
    found = list[list[float]]()
    for on in (False, True):
        report = Heard()
        config = Config(compile=on, batch_size=400, epochs=4, quiet=True)
        with Trainer(config, layers, digits()) as trainer:
            for p in (0.2, 0.8):
                vars(trainer.model[4])["p"] = p
                trainer.fit(report, epochs=4)
        found.append(report.losses)
    assert found[1] == found[0]
    assert reasons(made) == {None}


def without_dropout(trainer: Trainer) -> None:
    for layer in trainer.model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0


def test_what_a_report_changes_is_noticed(made: list[ReplayedStages]) -> None:
    class Changes(Heard):
        def progress(self, step: int, *numbers: Any) -> None:
            super().progress(step, *numbers)
            if step == 5:
                without_dropout(trainer)

    found = list[list[float]]()
    for on in (False, None):
        report = Changes()
        with Trainer(Config(compile=on, model="gpt:1x2x8", **TEXT)) as trainer:
            trainer.fit(report)
        found.append(report.losses)
    assert found[1] == found[0]
    assert reasons(made) == {None}


def test_what_changes_between_steps_by_hand_is_noticed(made: list[ReplayedStages]) -> None:
    found = list[list[float]]()
    for on in (False, None):
        with Trainer(Config(compile=on, model="gpt:1x2x8", **TEXT)) as trainer:
            found.append([])
            for step in trainer.strategy.steps(trainer.train, trainer.state):
                found[-1].append(step.loss)
                if step.state.step == 5:
                    without_dropout(trainer)
    assert found[1] == found[0]
    assert reasons(made) == {None}


def test_what_a_loss_changes_in_another_stage_is_noticed(made: list[ReplayedStages]) -> None:
    """The last stage runs as written, since the loss is the user's; an earlier one is replayed."""

    def rank(comm: Comm, on: bool | None) -> str:
        calls = list[None]()

        def build() -> nn.Module:
            hidden = (x for _ in range(5) for x in (nn.Linear(64, 64), nn.Dropout(0.5), nn.ReLU()))
            return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))

        def loss(scores: Tensor, y: Any) -> Tensor:
            calls.append(None)
            if len(calls) == 12:
                without_dropout(trainer)
            return nn.functional.cross_entropy(scores, y)

        options = {"schedule": "interleaved", "virtual_stages": 2, "micro_batches": 2}
        options["cut"] = "4,7,10"  # one that is measured may vary, and so what the loss changes
        config = Config(compile=on, pp=2, batch_size=20, epochs=2, quiet=True, **options)
        with Trainer(config, build, digits(), comm, loss=loss) as trainer:
            return str(trainer.fit()["parameters_sha256"])

    wanted, found = (threads.run(2, lambda comm, on=on: rank(comm, on)) for on in (False, None))
    assert found == wanted
    assert {True, False} == {reason is None for reason in reasons(made)}


# ---- what is refused


class GoesOn(nn.Module):
    """Reads values, and goes on with a constant where that is refused."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            is_large = float(x.array.max()) > 2
        except Exception:
            is_large = False
        return x * 2 if is_large else x


class AssignsABuffer(nn.Module):
    def __init__(self) -> None:
        self.register_buffer("seen", ones(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return x * self.seen


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (GoesOn, "forward reads values, and goes on if that is refused"),
        (AssignsABuffer, "forward assigns a buffer instead of writing into it"),
    ],
)
def test_a_pass_that_hides_what_it_does_runs_as_written(
    layer: type[nn.Module], reason: str, made: list[ReplayedStages]
) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), layer(), nn.ReLU(), nn.Linear(40, 10))

    assert trained(build, True) == trained(build, False)
    assert reasons(made) == {reason}


# ---- the comparison


def test_outputs_that_autograds_pass_has_released_are_not_kept() -> None:
    by_tape: Any = SimpleNamespace(outputs=["sent"])
    by_tape.release = lambda: setattr(by_tape, "outputs", ())
    unused: Any = None
    state: Any = SimpleNamespace(input=Tensor(np.ones(2)))
    compared = Compared(by_tape, unused, state, unused, unused, unused)
    compared.release()
    assert compared.outputs == ()


class Otherwise(nn.Module):
    """Computes with `by` in one place only, such as the gradient of its input."""

    def __init__(self, where: str) -> None:
        self.where, self.by, self.inner = where, 1.0, nn.Linear(8, 8)
        self.register_buffer("seen", ones(8))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.inner.weight, self.inner.bias
        if self.where == "gradient of an input":
            x = self.with_gradient(x)
        if self.where == "gradient of a parameter":
            weight = self.with_gradient(weight)
        if self.where == "buffer":
            self.seen.mul_(self.by)
        y = nn.functional.linear(x, weight, bias)
        return y * self.by if self.where == "output" else y

    def with_gradient(self, x: Tensor) -> Tensor:
        """x, whose gradient is multiplied."""
        return x * self.by + x.detach() * (1 - self.by)


@contextmanager
def otherwise_in(modules: Iterable[nn.Module]) -> Iterator[None]:
    others = [m for m in modules if isinstance(m, Otherwise)]
    for m in others:
        vars(m)["by"] = 2.0
    yield
    for m in others:
        vars(m)["by"] = 1.0


@pytest.fixture
def recorded_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings are of modules with another factor than that of passes as written."""
    of_pass, of_step = recordable_stage.record, compiled.record_step

    def record(modules: Sequence[nn.Module], *args: Any) -> Any:
        with otherwise_in(m for top in modules for m in top.modules()):
            return of_pass(modules, *args)

    def record_step(function: Any, code: Any, *args: Any) -> Any:
        with otherwise_in(code.all_modules):
            return of_step(function, code, *args)

    monkeypatch.setattr(recordable_stage, "record", record)
    monkeypatch.setattr(compiled, "record_step", record_step)


WHERE = "gradient of an input", "gradient of a parameter", "buffer", "output", "nothing"


def otherwise(where: str) -> nn.Module:
    first = nn.Flatten(), nn.Linear(64, 8), nn.Tanh()
    return nn.Sequential(*first, Otherwise(where), nn.Linear(8, 10))


@pytest.mark.usefixtures("recorded_otherwise")
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_recording_that_computes_otherwise_is_not_replayed(
    schedule: str, made: list[ReplayedStages]
) -> None:
    """In a pipeline, whose second stage begins with the module that does."""
    options = {"pp": 2, "cut": "3", "micro_batches": 2, "schedule": schedule, "steps": 5}
    for where in WHERE:
        made.clear()
        build = partial(otherwise, where)
        assert trained(build, True, 2, **options) == trained(build, False, 2, **options), where
        is_seen = where != "nothing"
        assert ("a recorded pass has other bits than the tape" in reasons(made)) is is_seen, where
        assert None in reasons(made)


@pytest.mark.usefixtures("recorded_otherwise")
@pytest.mark.parametrize("where", WHERE)
def test_a_step_that_is_recorded_otherwise_is_not_replayed(where: str) -> None:
    batch = digits().train.x[:8].astype("float32"), digits().train.y[:8]

    def losses(on: bool) -> list[float]:
        with seeded(3):
            model = otherwise(where)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(Tensor(x)), y)
            loss.backward()
            optimizer.step()
            return loss

        run: Any = nnmpi.compile(step) if on else step
        found = [run(*batch).item() for _ in range(4)]
        assert not on or (run.replays > 0) is (where == "nothing")
        return [*found, *np.concatenate([t.numpy().ravel() for t in model.state_dict().values()])]

    with nullcontext() if where == "nothing" else pytest.warns(match="has other bits"):
        found = losses(True)
    assert found == losses(False)
