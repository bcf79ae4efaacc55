"""nnmpi.compile: compiled steps have the bits of the step as written, or are refused."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import Made, bits, digits, mlp, results

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.optim.compiled import CompiledStep
from nnmpi.utils.checkpoint import checkpoint


def plain() -> Made:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(Tensor(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [model], [optimizer]


def clipped() -> Made:
    """Gradients of two parts of a batch add up, and are clipped."""
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        losses = []
        for part in (slice(0, 4), slice(4, 8)):
            losses.append(criterion(model(Tensor(x[part])), y[part]) / 2)
            losses[-1].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return {"loss": losses[0] + losses[1], "norm": Tensor(norm), "parts": 2}

    return step, [model], [optimizer]


def drawing() -> Made:
    """Dropout and BatchNorm, of a module that is called twice."""
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
    model = nn.Sequential(*layers)
    optimizer = optim.RMSprop(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad(set_to_none=False)
        first, second = model(Tensor(x)), model(Tensor(x))
        loss = nn.functional.cross_entropy(first, y) + ((first - second) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss, first.data

    return step, [model], [optimizer]


def noisy() -> Made:
    """Random tensors of each kind."""
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Tensor:
        optimizer.zero_grad()
        noise = nnmpi.randn(len(x), 6) * nnmpi.rand(len(x), 1) + nnmpi.randint(-2, 3, (len(x), 6))
        z = nn.functional.dropout(Tensor(x)[nnmpi.randperm(len(x))] + noise, 0.3)
        loss = nn.functional.cross_entropy(model(z), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [model], [optimizer]


def adversarial() -> Made:
    """Two models, each with an optimizer; one step after the other."""
    real, fake = mlp(), nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    of_real, of_fake = (optim.Adam(m.parameters(), lr=0.01) for m in (real, fake))

    def step(x: Any, y: Any) -> tuple[Tensor, Tensor]:
        of_real.zero_grad()
        made = fake(Tensor(x) + nnmpi.randn(len(x), 6))
        loss = nn.functional.cross_entropy(real(Tensor(x)), y) - real(made.detach()).mean()
        loss.backward()
        of_real.step()
        of_fake.zero_grad()
        other = (real(made) ** 2).mean()
        other.backward()
        of_fake.step()
        return loss, other

    return step, [real, fake], [of_real, of_fake]


def in_a_class() -> Made:
    class Training:
        def __init__(self) -> None:
            self.model, self.scale = mlp(), 0.5
            self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)

        def step(self, x: Any, y: Any) -> Tensor:
            loss = nn.functional.cross_entropy(self.model(Tensor(x)), y) * self.scale
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    training = Training()
    return training.step, [training.model], [training.optimizer]


def by_hand() -> Made:
    """Parameters without a module, and without an optimizer."""
    w = nn.Parameter(np.ones((6, 3), "float32"))

    def step(x: Any, y: Any) -> Tensor:
        loss = nn.functional.cross_entropy(Tensor(x) @ w, y)
        loss.backward()
        with nnmpi.no_grad():
            w.data -= 0.1 * w.grad
        w.grad = None
        return loss

    holder = nn.ParameterList([w])
    return step, [holder], []


class Centred(nn.Module):
    """Subtracts a running mean, which it writes by methods of its buffer."""

    def __init__(self) -> None:
        self.register_buffer("mean", nnmpi.zeros(6))
        self.register_buffer("seen", nnmpi.tensor(0))
        self.register_buffer("last", nnmpi.zeros(6), persistent=False)
        self.register_buffer("unused", None)

    mean: Tensor
    seen: Tensor
    last: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.seen += len(x)
        self.last.copy_(x[-1])
        self.last[0] = 1.0
        return (x - self.mean) * self.mean.std() + self.last / (1 + self.seen)


def centred() -> Made:
    return trained(nn.Sequential(Centred(), nn.Linear(6, 3)))


def trained(model: nn.Module) -> Made:
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(Tensor(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [model], [optimizer]


class Again(nn.Module):
    """Runs dropout and a layer again in the backward pass."""

    def __init__(self) -> None:
        self.dropped = nn.Sequential(nn.Dropout(0.4), nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.4))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.dropped, x)


def repeated() -> Made:
    return trained(nn.Sequential(nn.Linear(6, 6), Again(), nn.Linear(6, 3)))


STEPS = {
    f.__name__: f
    for f in (plain, clipped, drawing, noisy, adversarial, in_a_class, by_hand, centred, repeated)
}


def pair(make: Callable[[], Made]) -> tuple[Made, Made, CompiledStep]:
    with nnmpi.seeded(3):
        written = make()
    with nnmpi.seeded(3):
        step, *rest = make()
    compiled = nnmpi.compile(step)
    return written, (compiled, *rest), compiled


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_a_compiled_step_has_the_bits_of_the_step_as_written(make: Callable[[], Made]) -> None:
    written, other, compiled = pair(make)
    for number in range(8):
        batch = digits()
        if number == 6:
            batch = batch[0][:5], batch[1][:5]
        with nnmpi.seeded(number):
            wanted = results(written[0](*batch))
        with nnmpi.seeded(number):
            assert results(compiled(*batch)) == wanted
        assert bits(written) == bits(other)
    assert compiled.replays >= 4


def changes() -> Iterator[tuple[str, Callable[[Made], object]]]:
    yield "a mode", lambda made: made[1][0].eval()
    yield "a frozen layer", lambda made: made[1][0][0].weight.requires_grad_(False)
    yield "a rate", lambda made: made[2][0].param_groups[0].update(lr=0.5)
    yield "a layer", lambda made: setattr(made[1][0], "1", nn.Identity())
    yield "values", lambda made: made[1][0].load_state_dict(made[1][0].state_dict())
    yield "a gradient", lambda made: made[2][0].zero_grad()


CHANGES = dict(changes())


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_between_steps_counts(change: Callable[[Made], object]) -> None:
    written, other, compiled = pair(drawing)
    for number in range(8):
        batch = digits()
        if number == 4:
            change(written)
            change(other)
        assert results(written[0](*batch)) == results(compiled(*batch))
        assert bits(written) == bits(other)
    assert compiled.replays >= 3


BUFFERS: dict[str, Callable[[Any], object]] = {
    "written": lambda m: m.mean.mul_(2.0),
    "another tensor": lambda m: setattr(m, "mean", m.mean + 1),
    "other data": lambda m: setattr(m.mean, "data", nnmpi.ones(6)),
    "one more": lambda m: setattr(m, "unused", nnmpi.ones(1)),
}


@pytest.mark.parametrize("change", BUFFERS.values(), ids=BUFFERS)
def test_what_changes_of_a_buffer_counts(change: Callable[[Any], object]) -> None:
    written, other, compiled = pair(centred)
    for number in range(8):
        if number == 4:
            change(written[1][0][0])
            change(other[1][0][0])
        batch = digits()
        assert results(written[0](*batch)) == results(compiled(*batch))
        assert bits(written) == bits(other)
    assert compiled.replays >= 3


class Trained:
    power = 1

    def __init__(self) -> None:
        self.model, self.factor, self.losses = mlp(), 1.0, list[Any]()

    @property
    def scale(self) -> float:
        return self.factor**self.power

    def scaled(self, y: Tensor) -> Tensor:
        return y * self.scale

    def loss(self, x: Any) -> Tensor:
        return self.scaled(self.model(x).sum())

    def noted(self, x: Any) -> None:
        self.losses.append(self.model(x).sum())


def test_attributes_are_compared_or_refused() -> None:
    trained, x = Trained(), Tensor(digits()[0])
    step = nnmpi.compile(trained.loss)
    first = [step(x).item() for _ in range(3)]
    trained.factor = 2.0
    assert [step(x).item() for _ in range(2)] == pytest.approx([2 * first[0]] * 2)
    trained.power = 2
    assert [step(x).item() for _ in range(2)] == pytest.approx([4 * first[0]] * 2)
    assert step.replays == 4
    with pytest.raises(ValueError, match=r"self\.losses in noted is a list, which may change"):
        nnmpi.compile(trained.noted)(x)


def test_a_closure_is_compared() -> None:
    factor, model = 1.0, mlp()

    @nnmpi.compile
    def step(x: Any) -> Tensor:
        return model(x).sum() * factor

    x = Tensor(digits()[0])
    first = step(x).item()
    assert step(x).item() == first
    factor = 2.0
    assert step(x).item() == pytest.approx(2 * first)
    assert (step.__name__, step.replays) == ("step", 1)


SCALE = 1.0


def scaled(x: Any) -> Tensor:
    return x.sum() * SCALE


def test_a_global_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    step, x = nnmpi.compile(scaled), Tensor(np.ones(3, "float32"))
    assert [step(x).item() for _ in range(3)] == [3.0] * 3
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert [step(x).item() for _ in range(3)] == [6.0] * 3
    assert step.replays == 4


def test_an_error_in_a_label_changes_nothing() -> None:
    made, _, _ = pair(plain)
    step = nnmpi.compile(made[0])
    x, y = digits()
    for _ in range(3):
        step(x, y)
    before = bits(made)
    with pytest.raises(ValueError, match="labels from 0 to 7 for 3 classes"):
        step(x, y * 0 + [0, 7, 0, 0, 0, 0, 0, 0])
    assert bits(made) == before


def of_defaults() -> Made:
    model = mlp()
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    def step(x: Any, y: Any, *, of: Any = model, update: Any = optimizer.step) -> Tensor:
        for p in of.parameters():
            p.grad = None
        loss = (of(Tensor(x)) ** 2).mean()
        loss.backward()
        update()
        return loss

    return step, [model], [optimizer]


def test_a_hook_is_refused() -> None:
    _, other, compiled = pair(plain)
    for _ in range(3):
        compiled(*digits())
    other[1][0][0].register_forward_hook(lambda module, inputs, y: y)
    with pytest.raises(ValueError, match="Linear has hooks"):
        compiled(*digits())


def test_keyword_defaults_are_found() -> None:
    written, other, compiled = pair(of_defaults)
    for _ in range(5):
        batch = digits()
        assert results(written[0](*batch)) == results(compiled(*batch))
        assert bits(written) == bits(other)
    assert compiled.replays > 0


def test_arguments_of_other_kinds_are_other_steps() -> None:
    step = nnmpi.compile(lambda x, n=1: x * (2 if isinstance(x, Tensor) else 3) * n)
    a = np.ones(2)
    for _ in range(3):
        assert step(Tensor(a)).data.tolist() == [2, 2]
        assert step(a).tolist() == [3, 3]
        assert step(a, n=2).tolist() == [6, 6]
        assert step(a, n=2.0).tolist() == [6, 6]
    assert step.replays == 8


def test_arrays_of_other_types_and_strides_are_other_steps() -> None:
    step = nnmpi.compile(lambda x: (x / 2, x.strides))
    a = np.arange(1, 5, dtype="float32").reshape(2, 2)
    for x in (a, a.astype("int32"), a.T, a.view("int32")) * 2:
        y, strides = step(x)
        assert (y.tolist(), strides) == ((x / 2).tolist(), x.strides)
    assert step.replays == 5  # two of them are alike


def test_results_are_as_written() -> None:
    def step(x: Any) -> Any:
        return x.sum(), x.T * 2, (x == 1).all(), None, "text"

    compiled, x = nnmpi.compile(step), np.arange(6.0).reshape(2, 3)
    for _ in range(3):
        for one, other in zip(compiled(x), step(x), strict=True):
            assert type(one) is type(other)
            assert getattr(one, "strides", None) == getattr(other, "strides", None)
            assert np.all(one == other)
    assert compiled.replays == 2


def test_the_oldest_lists_are_dropped() -> None:
    step = nnmpi.compile(lambda x: x.sum())
    with pytest.warns(UserWarning, match="each call has other shapes, texts or variables"):
        assert [step(np.ones(n)) for n in [*range(1, 20), 1, 19]] == [*range(1, 20), 1, 19]
    assert step.replays == 1


def stale(
    step: Callable[..., Any], change: Callable[[], object], *args: Any
) -> tuple[list[Any], list[Any]]:
    """Results of a compiled step before and after a change, and those of the step as written."""
    compiled = nnmpi.compile(step)
    both = list[Any](), list[Any]()
    for number in range(4):
        if number == 2:
            change()
        both[0].append(results(compiled(*args)))
        both[1].append(results(step(*args)))
    assert compiled.replays >= 1
    return both


def test_what_a_step_reads_of_python_modules_partials_and_methods_is_compared() -> None:
    settings, x = ModuleType("settings"), np.arange(6, dtype="float32")
    settings.scale = 1.0  # type: ignore[attr-defined]
    compiled, written = stale(
        lambda x: Tensor(x).sum() * settings.scale, lambda: setattr(settings, "scale", 3.0), x
    )
    assert compiled == written
    scaled = partial(lambda x, scale: Tensor(x).sum() * scale, scale=1.0)
    compiled, written = stale(scaled, lambda: scaled.keywords.update(scale=5.0), x)
    assert compiled == written
    trained, other = Trained(), Trained()
    trained.scaled = other.scaled  # type: ignore[method-assign]
    compiled, written = stale(
        trained.loss, lambda: setattr(other, "factor", 4.0), Tensor(digits()[0])
    )
    assert compiled == written


class Summed(nn.Module):
    def forward(self, x: Any) -> Tensor:
        return x.sum()

    def scaled(self, x: Any) -> Tensor:
        return self(Tensor(x)) * SCALE


def test_globals_of_methods_of_modules_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Summed(), np.ones(3, "float32")
    compiled, written = stale(
        lambda x: module.scaled(x) * 1, lambda: monkeypatch.setitem(globals(), "SCALE", 2.0), x
    )
    assert compiled == written


@pytest.mark.filterwarnings("ignore:.*KeyError where values are not known")
def test_errors_of_the_step_are_its_own_and_change_what_it_changes() -> None:
    parameter = nn.Parameter(np.ones(3, "float32"))
    optimizer = optim.SGD([parameter], lr=0.5)

    @nnmpi.compile
    def step(x: Any) -> Tensor:
        optimizer.zero_grad()
        loss = (Tensor(x) * parameter).sum()
        loss.backward()
        optimizer.step()
        if len(x) == 1:
            raise KeyError("one number")
        return loss

    x = np.ones(1, "float32")
    for _ in range(3):
        with pytest.raises(KeyError):
            step(x)
    assert parameter.data.tolist() == [-0.5] * 3


def test_one_argument_given_twice_is_another_step() -> None:
    step = nnmpi.compile(lambda x, y: Tensor(x) * (2 if x is y else 3))
    a, b = np.ones(2), np.ones(2)
    for _ in range(3):
        assert step(a, b).data.tolist() == [3, 3]
        assert step(a, a).data.tolist() == [2, 2]
    assert step.replays == 4


def test_losses_made_in_the_step_and_copies_of_labels_are_replayed() -> None:
    model, (x, y) = mlp(), digits()

    @nnmpi.no_grad()
    def step(x: Any, y: Any) -> Tensor:
        return nn.CrossEntropyLoss(label_smoothing=0.1)(model(Tensor(x)), nnmpi.tensor(y))

    compiled = nnmpi.compile(step)
    for _ in range(4):
        assert results(compiled(x, y)) == results(step(x, y))
    assert compiled.replays == 3


def test_a_model_that_is_not_used_any_more_is_freed() -> None:
    model = mlp()
    step = nnmpi.compile(lambda x: model(Tensor(x)).sum())
    for _ in range(2):
        step(digits()[0])
    old, model = weakref.ref(model), mlp()
    step(digits()[0])
    gc.collect()
    assert old() is None


def test_optimizers_over_two_models_are_taken() -> None:
    first, second = nn.Linear(6, 4), nn.Linear(4, 3)
    optimizer = optim.Adam([*first.parameters(), *second.parameters()])
    criterion = nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = criterion(second(first(Tensor(x))), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled = nnmpi.compile(step)
    losses = [compiled(*digits()).item() for _ in range(4)]
    assert compiled.replays == 2  # the first step finds no gradients
    assert len({*losses}) == 4


def test_arguments_in_the_memory_of_parameters_are_read_as_written() -> None:
    """They change in the step, and copies do not."""
    made = list[tuple[Any, Any]]()
    for compiled in (False, True):
        w = nn.Parameter(np.ones(3, "float32"))
        optimizer = optim.SGD([w], lr=0.5)

        def step(x: Any, given: Any, w: Any = w, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            (Tensor(x) * w).sum().backward()
            optimizer.step()
            return (given * 2).sum()

        made.append((nnmpi.compile(step) if compiled else step, w))
    for number in range(8):
        first, second = (
            step(np.ones(3, "float32"), w.data.copy() if number < 4 else w.data) for step, w in made
        )
        assert first == second


def test_masks_are_not_kept_from_the_first_call() -> None:
    def step(x: Any, mask: Any) -> Any:
        w = np.zeros(8)
        w[mask] = 1.0
        return (Tensor(x) * Tensor(w)).sum()

    with pytest.raises(ValueError, match=r"nnmpi\.compile: recorded again"):
        nnmpi.compile(step)(np.ones(8), np.ones(8, bool))
