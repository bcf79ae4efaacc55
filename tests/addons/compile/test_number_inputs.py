"""Numbers among the arguments of a compiled step that differ from call to call: they are inputs of
its list, unless the step decides by them; and the bits are those of the step as written."""

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import bits, results

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.addons import ADD_ONS
from nnmpi.addons.compile import compiled
from nnmpi.addons.compile.number import Numbers
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import UnlikeError, logged_calls, refused
from nnmpi.nn import functional as F

NAN, INF = math.nan, math.inf
VALUES = 0.1, 0.2, 0.3, -0.0, 0.0, NAN, INF, 1.0, 2.0, 0.5, -1.0, 1e-300, 1e300, 0.7, 1e-3
OTHERS = 3, 5, 2, 1, 0, -1, True, np.float32(0.7), np.float64(0.9), 0.25, 4
"""Integers, and numbers that are constants of recordings."""

NAMES = {"F": F, "Tensor": Tensor, "math": math, "nn": nn, "nnmpi": nnmpi, "np": np}
STEP = """
def step(x, n, m=2):
    optimizer.zero_grad()
    x = model(x)
    y = {}
    (y.float().mean() + x.mean()).backward()
    optimizer.step(lr_factor=0.5)
    return y
"""


class Loop:
    """A step of a loop, in which `expression` reads the number n."""

    def __init__(self, expression: str, is_compiled: bool, text: str = STEP) -> None:
        with nnmpi.seeded(1):
            self.model = nn.Linear(6, 6)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        names = {**NAMES, "model": self.model, "optimizer": self.optimizer}
        exec(text.format(expression), names)
        self.step: Any = nnmpi.compile(names["step"]) if is_compiled else names["step"]

    def found(self, number: int, *args: Any, **named: Any) -> Any:
        """What a call returns or raises, and leaves; then the parameters are those at first."""
        x = np.linspace(-1, 1, 48, dtype="float32").reshape(8, 6)
        with nnmpi.seeded(number), np.errstate(all="ignore"):
            try:
                found: Any = results(self.step(Tensor(x), *args, **named))
            except (ArithmeticError, ValueError, RuntimeError, TypeError) as error:
                found = type(error), str(error)
        has_gradients = [p.grad is not None for p in self.model.parameters()]
        left = bits((self.step, [self.model], [self.optimizer])), has_gradients
        for p in self.model.parameters():
            p.data.copy_(Tensor(np.linspace(0, 1, p.data.numel(), dtype="float32")).view(p.shape))
        self.optimizer.state["momentum_buffer"][...] = 0.1
        return found, left


def replays(expression: str, values: tuple[Any, ...], text: str = STEP) -> int:
    """The number of replays of a step whose calls get these values one after the other, and have
    the bits of the step as written."""
    written, replayed = (Loop(expression, on, text) for on in (False, True))
    for number, value in enumerate(values):
        assert replayed.found(number, value) == written.found(number, value), value
    return int(replayed.step.replays)


COMPUTED = (
    *("x * n", "n * x", "x / n", "n / x", "x + n", "n - x", "x % n", "x - x * n"),
    *("x * (n * 0.5)", "x * (1 - n) + n * x", "x * -n", "x * abs(n)", "x * (n % 0.3)"),
    *(
        "x * (n + n + 1)",
        "x * math.prod((n, n, 2))",
        "x * [n, 1][0]",
        "x * (lambda k: k * 2)(n)",
        "x * (n // 0.3)",
    ),
    *("x.mul(n)", "x.add(x, alpha=n)", "x.sub(x, alpha=-n)", "x.clone().mul_(n)", "x.clamp(max=n)"),
    *("x.clone().fill_(n)", "x.masked_fill(x > 0, n)", "nnmpi.where(x > n, x, n)"),
    *("nnmpi.cat((x, x * n))", "x.to(nnmpi.float16) * n", "x.double() / n", "x[:, :3] * n"),
    *("x + Tensor(np.arange(6)) * n", "x + (Tensor(np.arange(6)) // n)", "x * (np.ones(6) * n)"),
    *("F.leaky_relu(x, n)", "x * isinstance(n, float)", "x * np.exp(n)", "x * (np.float32(2) * n)"),
)
"""Expressions in which n is an input of the list."""

OF_SOME = "x * (1 / n)", "x * n ** 2", "x * n ** 0.5", "x * 2 ** n", "x * pow(n, 3)"
"""The same, but for some values they raise an error, or are numbers of another type."""

DECIDING = (
    *("x * n if n > 0.15 else x", "x * max(n, 0.15)", "x * (n or 0.5)", "x * (n == 0.2)"),
    *("x * (n in (0.1, 0.2))", "x * {0.1: 2.0}.get(n, 1.0)", "x * round(n, 1)", "x * float(n)"),
    *("x * (f'{n}' == '0.2')", "x * divmod(n, 0.3)[1]", "x * math.cos(n)", "x * n.real"),
    *("F.dropout(x, n)", "x ** n", "x + (np.arange(6, dtype='float32') ** n)", "x.lerp(x * 2, n)"),
    *("F.huber_loss(x, x * 0, delta=n) * x", "x * nnmpi.tensor(n)", "x * np.float32(n)"),
    *(
        "x * sum((n, n, 1))",
        "x * sum((0.1, n, 0.3))",
        "x * np.full((), n)",
        "x * np.full(6, n)",
        "x * [5, 6][n > 0.3]",
        "x[:, : (3 if n else 2)]",
    ),
)
"""Expressions in which n is a constant of each recording: they read its value."""

SHAPES = "x[:, :n]", "x.reshape(n, -1)", "x.repeat(n, 1)", "sum(x * k for k in range(n))"
"""The same for integers."""


@pytest.mark.parametrize("expression", COMPUTED)
def test_a_number_with_which_a_step_computes_is_an_input(expression: str) -> None:
    """In the first call there are no gradients; then it is recorded twice, and compared again."""
    assert replays(expression, VALUES) == len(VALUES) - 4
    assert replays(expression, VALUES + OTHERS) >= len(VALUES) - 4


@pytest.mark.filterwarnings("ignore:nnmpi.compile")
@pytest.mark.parametrize("expression", OF_SOME)
def test_values_for_which_a_step_is_another_one_run_as_written(expression: str) -> None:
    assert replays(expression, VALUES + OTHERS) >= 5


@pytest.mark.filterwarnings("ignore:nnmpi.compile")
@pytest.mark.parametrize("expression", DECIDING)
def test_a_number_by_which_a_step_decides_is_a_constant(expression: str) -> None:
    assert replays(expression, (*VALUES, *OTHERS)) == 0


@pytest.mark.parametrize("expression", SHAPES)
def test_an_integer_that_gives_a_shape_is_a_constant(expression: str) -> None:
    assert replays(expression, (2, 4, 1, 8)) == 0
    assert replays(expression, (2, 4, 2, 2, 4, 4)) == 3


def test_the_rate_of_an_optimizer_is_an_input() -> None:
    text = STEP.replace("lr_factor=0.5", "lr_factor=n")
    assert replays("x * x", VALUES[:3] + VALUES[7:], text) == 7


BY_HAND = """
def step(x, n):
    for p in model.parameters():
        p.grad = None
    y = (model(x) ** 2).mean()
    y.backward()
    with nnmpi.no_grad():
        for p in model.parameters():
            {}
    return y
"""


@pytest.mark.parametrize("update", ["p -= n * p.grad", "p.data.add_(p.grad, alpha=-n)"])
def test_the_rate_of_an_update_by_hand_is_an_input(update: str) -> None:
    assert replays(update, VALUES, BY_HAND) == len(VALUES) - 4


def test_numbers_become_inputs_one_after_the_other() -> None:
    """The second one first; each is the one that it is in the code."""
    calls = [(0.1, 2.0), (0.1, 3.0), (0.1, 4.0), (0.1, 5.0), (0.1, 6.0), (0.2, 6.0), (0.3, 7.0)]
    calls += [(0.4, 8.0), (0.5, 9.0)]
    written, replayed = (Loop("x * n - m", on) for on in (False, True))
    for number, (n, m) in enumerate(calls):
        assert replayed.found(number, n, m=m) == written.found(number, n, m=m)
    assert replayed.step.replays == 1 + 2


def test_a_number_by_which_another_call_decides_is_a_constant_again() -> None:
    calls = [(n, m) for m in (0, 1, 0) for n in (0.1, 0.2, 0.3, 0.4, 0.5)]
    written, replayed = (Loop("x * n if m == 0 or n > 0.25 else x", on) for on in (False, True))
    for number, (n, m) in enumerate(calls):
        assert replayed.found(number, n, m) == written.found(number, n, m)
    assert replayed.step.replays == 1


def test_numbers_in_dicts_and_lists_are_inputs() -> None:
    step: Any = nnmpi.compile(lambda x, of: x * of["a"][0] + of["b"])
    x = np.ones(3, "float32")
    for k in range(6):
        assert step(x, of={"a": [k / 4, 1], "b": k / 8}).tolist() == [k / 4 + k / 8] * 3
    assert step.replays == 3


@pytest.mark.filterwarnings("ignore:nnmpi.compile.*each call has other shapes")
def test_a_list_is_compared_for_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is right for the value that it is recorded with, and for no other one. Then
    others are recorded, until the oldest ones are dropped."""
    first = list[Any]()

    def values(self: Numbers, given: Any) -> Any:
        first.append(given)
        return [*first[0]]

    monkeypatch.setattr(Numbers, "values", values)
    assert replays("x * n", (0.1, 0.2, 0.3, 0.4, 0.4, 0.4)) == 1
    first.clear()
    step: Any = nnmpi.compile(lambda x, n: x * n)
    for size, n in [(1, 0.1), (1, 0.2), (1, 0.3), *((size, 0.3) for size in range(2, 20))]:
        assert step(np.ones(size), n).tolist() == [n] * size


def first(small: Any, n: Any) -> Any:
    small = small * 1
    small[0] = n
    return small


def listed(small: Any, n: Any) -> Any:
    small = small * 1
    small[[0]] = n
    return small


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda small, n: small * n, (1, 2, 3, 300, 4)),
        (first, (1, 2, 3, 300, 4)),
        (first, (1.0, 2.5, -3.5, INF, NAN, 1e10, 4.0)),
        (listed, (1.0, 2.5, -3.5, INF, NAN, 4.0)),
    ],
)
def test_numbers_that_integers_do_not_hold_leave_the_state_of_the_step_as_written(
    function: Callable[..., Any], numbers: tuple[Any, ...]
) -> None:
    def found(compiled: Callable[[Any], Any]) -> list[Any]:
        drop, steps = nn.Dropout(0.5), list[Any]()
        step = compiled(lambda x, small, n: (drop(x), function(small, n), nnmpi.rand(2)))
        for n in numbers:
            try:
                steps.append(results(step(np.ones(8, "float32"), np.ones(2, "int8"), n)))
            except (OverflowError, ValueError) as error:
                steps.append(str(error))
        return steps

    with nnmpi.seeded(1):
        written = found(lambda step: step)
    with nnmpi.seeded(1):
        assert found(nnmpi.compile) == written


def test_a_step_is_not_recorded_again_with_an_input_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, record_step = list[Any](), compiled.record_step

    def counted(*args: Any) -> Any:
        tried.append(args[-1])
        return record_step(*args)

    monkeypatch.setattr(compiled, "record_step", counted)
    step: Any = nnmpi.compile(lambda x, n: x * n if n > 0 else x)
    for number in range(6):
        step(np.ones(3), number / 4)
    assert [*filter(None, tried)] == [[0]]
    assert len(step._forms) == 1


def test_lists_that_no_call_can_use_any_more_are_dropped(recwarn: pytest.WarningsRecorder) -> None:
    """They would be taken for those of a step that is recorded in each call."""
    step: Any = nnmpi.compile(lambda x, n: x * n)
    for size in range(1, 11):
        for n in (0.1, 0.2, 0.3):
            assert step(np.ones(size), n).tolist() == [n] * size
    assert sum(len(form.lists) for form in step._forms.values()) == 10
    assert not recwarn


def test_what_reads_a_number_is_refused_however_it_is_done() -> None:
    reads: tuple[Callable[[Any], Any], ...] = (
        *(bool, float, int, complex, hash, str, repr, round, range, math.floor, math.sqrt),
        *(np.asarray, np.float32, np.array, lambda n: np.full(2, n), lambda n: [0] * n),
        *(lambda n: n > 0, lambda n: n == 0, lambda n: n != 0, lambda n: {n: 1}),
        *(lambda n: n in (1, 2), lambda n: f"{n}", lambda n: f"{n:.3f}", lambda n: [n].index(1)),
        *(lambda n: hasattr(n, "real"), lambda n: n.as_integer_ratio(), lambda n: n.imag),
        *(lambda n: min(n, 1), lambda n: sorted((n, 1)), lambda n: not n, lambda n: n and 1),
        *(lambda n: np.ones(2)[:n], lambda n: np.ones(2).reshape(n), lambda n: divmod(n, 2)),
    )
    for example in (2, 2.0):
        for read in reads:
            with logged_calls() as calls, pytest.raises(NumbersReadError):
                read(Numbers().new(example))
            assert calls[-1].function is refused  # if the code of a step catches the error


EXACT = re.compile(
    r"\btype\(\w+\) (is|is not|==|in)\b.*\b(int|float|_?NUMBERS)\b|\b(int|float) in \(type\("
)
TAKEN = {"tensor.py": 2, "precision.py": 2, "number.py": 1, "gpt2.py": 1}
"""How many lines ask so in which files: of an index and of operands that take a shorter way to the
same, of numbers with which a Number computes, and of tokens."""


def test_code_of_ops_does_not_ask_for_the_exact_type_of_a_number() -> None:
    """`x.__class__ is float` is true of numbers that are inputs, and `type(x) is float` is not: a
    check of the value behind it would be left out of the recording."""
    root = Path(nnmpi.__path__[0])
    of_add_ons = ["nnmpi.addons.compile.number", *(m for a in ADD_ONS.values() for m in a.of_step)]
    paths = [
        *(root / room for room in ("arrays", "autograd", "nn")),
        *(root.parent.joinpath(*module.split(".")) for module in of_add_ons),
    ]
    files = {f for p in paths for f in (p.rglob("*.py") if p.is_dir() else [p.with_suffix(".py")])}
    lines = [(f.name, s) for f in sorted(files) for s in f.read_text().splitlines()]
    found = Counter(name for name, line in lines if EXACT.search(line))
    assert found == TAKEN, "write x.__class__ instead of type(x), or say why it makes no difference"


def test_computed_numbers_are_computed_again() -> None:
    numbers = Numbers()
    n, k = numbers.new(0.5), numbers.new(3)
    found = [1 - n, n * k, k / 2, -k, k**2, 2**k, n // 0.2, k % 2, abs(-n), +k]
    assert [x.example for x in found] == [0.5, 1.5, 1.5, -3, 9, 8, 2.0, 1, 0.5, 3]
    values = numbers.values([0.25, 5])
    assert [values[x.index] for x in found] == [0.75, 1.25, 2.5, -5, 25, 32, 1.0, 1, 0.25, 5]
    with pytest.raises(UnlikeError):
        numbers.values([0.25, -1])  # 2 ** -1 is a float


def test_a_number_that_is_read_is_fast_as_a_tensor() -> None:
    """What the warning of a step that is recorded in each call says to write."""
    step: Any = nnmpi.compile(lambda x, n: x * n.sqrt())
    for k in range(1, 20):
        y = step(Tensor(np.ones(2, "float32")), nnmpi.tensor(k / 4))
        assert y.tolist() == (Tensor(np.ones(2, "float32")) * nnmpi.tensor(k / 4).sqrt()).tolist()
    assert step.replays == 18
