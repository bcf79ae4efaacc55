"""nnmpi.compile: what cannot be replayed is refused, and nothing has changed then."""

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import Made, Step, bits, digits, mlp

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


def step_of(body: Callable[[nn.Module, optim.Optimizer, Any], Any]) -> tuple[Made, Step]:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(Tensor(x)) ** 2).mean()
        loss.backward()
        optimizer.step()
        return body(model, optimizer, loss)

    return (step, [model], [optimizer]), nnmpi.compile(step)


def sets(model: Any, optimizer: Any, loss: Any) -> None:
    model.scale = 2.0


def rates(model: Any, optimizer: Any, loss: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.9


def reads(model: Any, optimizer: Any, loss: Any) -> float:
    return loss.item()  # read


def evaluates(model: Any, optimizer: Any, loss: Any) -> None:
    model.eval()


def freezes(model: Any, optimizer: Any, loss: Any) -> None:
    model[0].weight.requires_grad_(False)


def wraps(model: Any, optimizer: Any, loss: Any) -> Any:
    return SimpleNamespace(loss=loss)


def swallows(model: Any, optimizer: Any, loss: Any) -> Any:
    try:
        return float(loss)
    except Exception:
        return 0.0


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a value is read": (reads, r"test_refused_steps\.py:\d+: .*reading an array"),
    "a value is read, and the error swallowed": (swallows, "reads values, and goes on"),
    "an attribute is set": (sets, "body in step sets scale, which replays would not do"),
    "a mode is set": (evaluates, "changes a mode, an option or a module"),
    "a layer is frozen": (freezes, "changes a mode, an option or a module"),
    "a rate is set": (
        rates,
        "uses param_groups: of an optimizer, a step may use zero_grad and step; set its",
    ),
    "an object is returned": (
        wraps,
        "SimpleNamespace in body in step is no function or class that a recording may use",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_replayed_is_refused_and_nothing_has_changed(
    body: Callable[..., Any], message: str
) -> None:
    made, step = step_of(body)
    before = bits(made)
    with pytest.raises(ValueError, match=message):
        step(digits()[0])
    assert bits(made) == before
    (model,), (optimizer,) = made[1:]
    assert all(p.requires_grad and not p.has_grad for p in model.parameters())
    assert (model.passes, model.training, optimizer.param_groups[0]["lr"]) == (0, True, 0.1)


def test_objects_that_change_unseen_are_refused() -> None:
    model = mlp()
    losses = list[Tensor]()
    scheduler = optim.lr_scheduler.StepLR(optim.SGD(model.parameters(), lr=0.1), 1)

    def collects(x: Any) -> None:
        losses.append(model(x).sum())

    def schedules(x: Any) -> None:
        model(x).sum().backward()
        scheduler.step()

    table = {"scale": 2.0}
    for step, message in (
        (collects, r"losses in .*collects.* is a list.*; write a tuple, or .*append\(step\(x\)\)"),
        (schedules, r"scheduler in schedules is a ChainableLR, .* call its step\(\) outside"),
        (lambda x: x * table["scale"], "table in .* is a dict.*; pass it as an argument"),
    ):
        with pytest.raises(ValueError, match=message):
            nnmpi.compile(step)(Tensor(digits()[0]))
    step = nnmpi.compile(lambda x, table: x * table["scale"])
    x = Tensor(np.ones(3, "float32"))
    assert [step(x, table).tolist() for _ in range(3)] == [[2.0] * 3] * 3
    assert step.replays == 2


def doubled(x: Any) -> None:
    x *= 2


def written(x: Any) -> None:
    x[0] = 1.0


@pytest.mark.parametrize(
    "write",
    [
        doubled,
        written,
        lambda x: np.maximum(x, 0, out=x),
        lambda x: np.add.at(x, [0], 1.0),
        lambda x: np.copyto(x, np.abs(x)),
        lambda x: np.concatenate([x[1:], x[:1]], out=x),
        lambda x: x.fill(0),
    ],
)
def test_a_step_that_writes_into_its_argument_is_refused(write: Any) -> None:
    def step(x: Any) -> Tensor:
        write(x)
        return Tensor(x).sum()

    x = np.ones(3)
    with pytest.raises(ValueError, match="writes into an argument"):
        nnmpi.compile(step)(x)
    assert x.tolist() == [1.0] * 3
    x.flags.writeable = False
    for _ in range(3):
        assert nnmpi.compile(lambda x: Tensor(x).sum())(x).item() == 3


def test_a_model_that_is_cut_is_refused() -> None:
    samples = *digits(), *digits()

    def fit(comm: Comm) -> None:
        config = nnmpi.Config(quiet=True, tp=2)
        with nnmpi.Trainer(config, mlp, samples, comm) as trainer:
            model = trainer.model
            step = nnmpi.compile(lambda x: model(x) * 2)
            with pytest.raises(ValueError, match="uses a model that a Trainer has cut"):
                step(Tensor(digits()[0]))

    threads.run(2, fit)


def test_an_argument_that_needs_a_gradient_is_refused() -> None:
    model = mlp()
    step = nnmpi.compile(lambda x: model(x).sum())
    with pytest.raises(ValueError, match="requires a gradient; pass its values"):
        step(Tensor(digits()[0], requires_grad=True))
    for _ in range(3):
        step(Tensor(digits()[0]))
    assert step.replays == 2


MODEL = mlp()


OBJECT, LIST, ARRAY = SimpleNamespace(scale=1.0), [1.0], np.ones(3, "float32")


def refused(text: str) -> None:
    names = {**globals(), "step": None}
    exec(f"def step(x, *, model=MODEL):\n    {text}", names)
    with pytest.raises(ValueError, match=r"^nnmpi\.compile: "):
        nnmpi.compile(names["step"])(Tensor(digits()[0]))


@pytest.mark.parametrize(
    "text",
    [
        "return x * OBJECT.scale",
        "return x * LIST[0]",
        "return x.sum() * ARRAY",
        "return x * getattr(model, 'scale', 1.0)",
        "global COUNT; COUNT = 1",
        "return nn.Linear(6, 2)(x)",
        "return x * float(np.random.rand())",
        "return (x * 1).uniform_()",
        "return (x * 1).normal_()",
        "return nn.Dropout(0.5)(x)",
        "return x.sum().item()",
        "return np.asarray(x)",
        "return model[0].weight",
        "x[0] = 1.0",
    ],
)
def test_what_cannot_be_followed_is_refused(text: str) -> None:
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - the step draws from it
    refused(text)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@pytest.mark.parametrize("value", [MODEL, OBJECT, MODEL[0].weight, {1, 2}, np.ma.ones(3)])
def test_arguments_are_arrays_tensors_numbers_and_texts(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^nnmpi\.compile: an argument "):
        nnmpi.compile(lambda x: None)(value)


def halved(batch: Any) -> Any:
    batch["x"] = batch["x"] / 2
    return batch["x"].sum()


def popped(batch: Any) -> Any:
    return batch.pop("x").sum()


def replaced(batch: Any) -> Any:
    batch["t"].data = batch["t"].data / 2
    return batch["t"].sum()


@pytest.mark.parametrize("step", [halved, popped, replaced])
def test_a_step_that_changes_an_argument_is_refused(step: Step) -> None:
    batch = {"x": np.ones(3), "t": Tensor(np.ones(3))}
    with pytest.raises(ValueError, match="the step changes an argument"):
        nnmpi.compile(step)(batch)
    assert batch["x"].tolist() == batch["t"].data.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "step",
    [
        lambda x: np.int64((x.argmax(1) == 1).sum()),
        lambda x: f"{x.sum():.3f}",
        lambda x: str(Tensor(x).sum()),
        lambda x: next(iter(x.sum(0))) > 0 and x.sum(),
        lambda x: x.sum() * np.float32(x.max()),
    ],
)
def test_values_that_are_read_unnoticed_are_refused(step: Step) -> None:
    """Also where the first batch is zeros, as the memory of arrays without data might be."""
    with pytest.raises(ValueError, match=r"nnmpi\.compile: .*(read|values)"):
        nnmpi.compile(step)(np.zeros((3, 2), "float32"))


def test_modules_and_methods_of_classes_are_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match="takes the function of a whole training step"):
        nnmpi.compile(mlp())

    class Loop:
        @nnmpi.compile
        def step(self, x: Any) -> Tensor:
            return Tensor(x).sum()

    with pytest.raises(ValueError, match=r"self\.step = nnmpi\.compile\(self\.step\)"):
        Loop().step(np.ones(3))
    again = pickle.loads(pickle.dumps(nnmpi.compile(halved)))
    assert again._function is halved
