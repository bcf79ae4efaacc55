"""nnmpi.compile: compiled steps have the bits of the step as written, or are refused."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import Made, bits, digits, mlp, results

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.addons.compile.compiled import CompiledStep
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


def by_keyword_defaults() -> Made:
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


def evaluated() -> Made:
    """The loss is made in the step, and so are copies of labels."""
    model = mlp()

    @nnmpi.no_grad()
    def step(x: Any, y: Any) -> Tensor:
        return nn.CrossEntropyLoss(label_smoothing=0.1)(model(Tensor(x)), nnmpi.tensor(y))

    return step, [model], []


def in_modes() -> Made:
    """Context managers of add-ons, which are classes of modules that a recording may use."""
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Tensor:
        optimizer.zero_grad()
        with nnmpi.enable_grad(), nnmpi.autocast("cpu", nnmpi.bfloat16):
            loss = nn.functional.cross_entropy(model(Tensor(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [model], [optimizer]


OF_USERS = (plain, clipped, drawing, noisy, adversarial, in_a_class, by_hand, centred)
OF_USERS += repeated, by_keyword_defaults, evaluated, in_modes
STEPS = {f.__name__: f for f in OF_USERS}


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


CHANGES: dict[str, tuple[Callable[[], Made], Callable[[Made], object]]] = {
    "a mode": (drawing, lambda made: made[1][0].eval()),
    "a frozen layer": (drawing, lambda made: made[1][0][0].weight.requires_grad_(False)),
    "a rate": (drawing, lambda made: made[2][0].param_groups[0].update(lr=0.5)),
    "a layer": (drawing, lambda made: setattr(made[1][0], "1", nn.Identity())),
    "values": (drawing, lambda made: made[1][0].load_state_dict(made[1][0].state_dict())),
    "a gradient": (drawing, lambda made: made[2][0].zero_grad()),
    "a buffer is written": (centred, lambda made: made[1][0][0].mean.mul_(2.0)),
    "another buffer": (centred, lambda made: setattr(made[1][0][0], "mean", nnmpi.ones(6))),
    "data of a buffer": (centred, lambda made: setattr(made[1][0][0].mean, "data", nnmpi.ones(6))),
    "one more buffer": (centred, lambda made: setattr(made[1][0][0], "unused", nnmpi.ones(1))),
}


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
def test_what_changes_between_steps_counts(
    make: Callable[[], Made], change: Callable[[Made], object]
) -> None:
    written, other, compiled = pair(make)
    for number in range(8):
        batch = digits()
        if number == 4:
            change(written)
            change(other)
        assert results(written[0](*batch)) == results(compiled(*batch))
        assert bits(written) == bits(other)
    assert compiled.replays >= 3


# ---- what a step reads


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


SCALE = 1.0


class Summed(nn.Module):
    def forward(self, x: Any) -> Tensor:
        return x.sum()

    def scaled(self, x: Any) -> Tensor:
        return self(x) * SCALE


Read = tuple[Callable[[Any], Any], Callable[[], object]]


def of_self(patch: pytest.MonkeyPatch) -> Read:
    trained = Trained()
    return trained.loss, lambda: setattr(trained, "factor", 2.0)


def of_a_class(patch: pytest.MonkeyPatch) -> Read:
    """A property reads it."""
    trained = Trained()
    trained.factor = 2.0
    return trained.loss, lambda: patch.setattr(Trained, "power", 2)


def of_another_object(patch: pytest.MonkeyPatch) -> Read:
    trained, other = Trained(), Trained()
    trained.scaled = other.scaled  # type: ignore[method-assign]
    return trained.loss, lambda: setattr(other, "factor", 4.0)


def of_a_closure(patch: pytest.MonkeyPatch) -> Read:
    factor = 1.0

    def change() -> None:
        nonlocal factor
        factor = 2.0

    return lambda x: x.sum() * factor, change


def of_globals(patch: pytest.MonkeyPatch) -> Read:
    return lambda x: x.sum() * SCALE, lambda: patch.setitem(globals(), "SCALE", 2.0)


def of_globals_in_a_method(patch: pytest.MonkeyPatch) -> Read:
    module = Summed()
    return lambda x: module.scaled(x) * 1, lambda: patch.setitem(globals(), "SCALE", 2.0)


def of_a_python_module(patch: pytest.MonkeyPatch) -> Read:
    settings = ModuleType("settings")
    settings.scale = 1.0  # type: ignore[attr-defined]
    return lambda x: x.sum() * settings.scale, lambda: setattr(settings, "scale", 3.0)


def of_a_partial(patch: pytest.MonkeyPatch) -> Read:
    scaled = partial(lambda x, scale: x.sum() * scale, scale=1.0)
    return scaled, lambda: scaled.keywords.update(scale=5.0)


READ = (of_self, of_a_class, of_another_object, of_a_closure, of_globals, of_globals_in_a_method)
READ += of_a_python_module, of_a_partial


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__)
def test_what_a_step_reads_is_compared(
    make: Callable[[pytest.MonkeyPatch], Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, change = make(monkeypatch)
    compiled, x, found = nnmpi.compile(step), Tensor(digits()[0]), set()
    for number in range(6):
        if number == 3:
            change()
        found.add(compiled(x).item())
        assert results(compiled(x)) == results(step(x))
    assert len(found) == 2
    assert compiled.replays == 10


def test_a_list_that_a_method_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"self\.losses in noted is a list, which may change"):
        nnmpi.compile(Trained().noted)(Tensor(digits()[0]))


# ---- what it does


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


def test_a_hook_is_refused() -> None:
    _, other, compiled = pair(plain)
    for _ in range(3):
        compiled(*digits())
    other[1][0][0].register_forward_hook(lambda module, inputs, y: y)
    with pytest.raises(ValueError, match="Linear has hooks"):
        compiled(*digits())


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

    assert step.__name__ == "step"
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
