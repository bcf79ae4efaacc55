"""compile: records a step of a user's training loop once, and replays it as a list of kernels.

    @nnmpi.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

first call    the step is recorded on arrays without data. Then it runs as written, and once more,
              from the same state, as a list; if the bits differ, it is never replayed
later calls   the list runs: kernels, and a call of `step` for each optimizer.step() in the code
otherwise     if shapes of arguments, train or eval mode, attributes that the step reads, or which
              gradients exist have changed, the step is recorded again
numbers       a number among the arguments that is another one in a later call becomes an input of
              the list, unless the step decides by it
"""

import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial, update_wrapper
from operator import attrgetter
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons import Table
from nnmpi.addons.compile.call_form import CallForm
from nnmpi.addons.compile.recorded_step import NUMBERS, RecordedStep, UnrecordedError, record_step
from nnmpi.addons.compile.step_code import StepCode
from nnmpi.addons.compile.step_replay import CheckError, Memory, StepReplay, on_host, texts_of
from nnmpi.addons.compile.step_state import StepState, bits_of
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, is_array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.parameter_data import ParameterData
from nnmpi.nn.passes import KEY_WITH_GRADIENT, key_of_context
from nnmpi.nn.record import repeated
from nnmpi.nn.users_code import UnfitError, compared, is_plain

MOST_LISTS = 16
"""The largest number of lists that are kept for a step."""

MANY = (
    "each call has other shapes, texts or variables, or numbers by which it decides, and is "
    "recorded anew: pass arrays of one shape, and numbers as arguments or as nnmpi.tensor(x)"
)
"""The warning about a step whose lists are dropped before they are replayed."""

STEP_GRAPHS: Table[Callable[..., Memory]] = Table("step_graphs")
"""By device: captures a recorded step as graphs of the device, and returns it in its memory."""

_TRAINING, _GIVEN_GRAD = attrgetter("training"), attrgetter("given_grad")


def compile(function: Callable[..., Any]) -> "CompiledStep":
    """Returns a function that does the same training step as `function`, from its second call on as
    a list of kernels, with the same bits.

    Arguments are arrays, tensors, numbers and texts, which are read when the step begins; results
    are new, and have no graph. A number that differs from call to call, such as a learning rate,
    takes no new recording if the step only computes with it, as in `optimizer.step(lr_factor=n)`.
    The step cannot read values of tensors: return them. If a variable or an attribute that it reads
    is set to another object, or a module changes, the step is recorded again. Code that cannot be
    followed (lists and dicts, objects whose attributes do not show all changes, options of
    optimizers) is refused with a ValueError, before anything has changed.
    """
    return CompiledStep(function)


class CompiledStep:
    """A training step that is recorded and replayed (see `compile`).

    replays   the number of calls that were replayed
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function) or isinstance(function, Module | type):
            raise ValueError("nnmpi.compile takes the function of a whole training step")
        update_wrapper(self, function, updated=())
        self._function, self.replays, self._lock = function, 0, RLock()
        self._code: StepCode | None = None
        self._forms = dict[Any, CallForm]()
        self._last = list[Any]()
        self._last_code: StepCode | None = None
        self._form = CallForm()
        self._told = False

    def __get__(self, instance: Any, owner: type) -> "CompiledStep":
        if instance is None:
            return self
        name = getattr(self, "__name__", "step")
        raise ValueError(
            "nnmpi.compile: a method is compiled for one object: instead of the decorator, write "
            f"self.{name} = nnmpi.compile(self.{name}) in __init__"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how to copy or pickle this object: as the user's function without recordings. The
        copy records the step again."""
        return CompiledStep, (self._function,)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Makes a training step; returns what the user's function returns."""
        with self._lock:
            return self._step(args, named)

    def _step(self, args: Sequence[Any], named: dict[str, Any]) -> Any:
        arrays, plain, numbers = list[Array](), list[Any]([bool(named)]), list[Any]()
        for value in (args, named) if named else args:
            _sort(arrays, plain, numbers, value)
        if (code := self._code) is None or not code.is_same():
            code = self._code = self._looked_at()
        # a replay would overwrite a gradient that the program keeps
        if any(map(_GIVEN_GRAD, code.parameters)) and _keeps_gradient(code.parameters):
            return self._function(*args, **named)
        if len({*map(id, arrays)}) < len(arrays):  # arguments that are one and the same
            plain.append(tuple([*map(id, arrays)].index(id(array)) for array in arrays))
        guards = [
            *key_of_context(code.on),
            *[(a.shape, a.strides, a.dtype) for a in arrays],
            *plain,
            *map(KEY_WITH_GRADIENT, code.parameters),
            *map(_TRAINING, code.all_modules),
        ]
        if guards != self._last or code is not self._last_code:
            if code.has_moved():
                self._code = None
                return self._step(args, named)
            kind = *guards, *code.state
            self._form = self._forms.get(kind) or CallForm(kind)
            self._last, self._last_code = guards, code
        form = self._form
        if (key := form.key(numbers)) not in form.lists:
            replay = self._recorded(form, code, Given(args, named, arrays, numbers))
        else:
            replay = form.lists[key]
        if replay is None:
            return self._function(*args, **named)
        inputs = form.inputs(numbers)
        if replay.lacks_comparison(inputs):
            return self._compared(form, code, replay, Given(args, named, arrays, numbers))
        try:
            result = replay(arrays, inputs)
        except CheckError:  # the step as written tells about it, and changes what it does
            return self._function(*args, **named)
        self.replays += 1
        replay.is_used = True
        return result

    def _looked_at(self) -> StepCode:
        """Analyses which modules, optimizers and variables the code of the step uses, after one of
        them has changed; returns the analysis."""
        try:
            code = StepCode(self._function)
        except UnfitError as error:
            raise ValueError(f"nnmpi.compile: {error}{error.advice}") from None
        if self._code is not None and not code.has_same_parts(self._code):
            self._forms.clear()  # they keep models that are not used any more
            self._last, self._last_code, self._form = [], None, CallForm()
        return code

    def _recorded(self, form: CallForm, code: StepCode, given: "Given") -> StepReplay | None:
        """Records the step for calls with such arguments, and stores the list in `form`; returns
        it, or None if the step runs as written. `code` says what the step reads."""
        if self._drop_oldest() and not self._told:
            self._told = True
            self._warn(MANY)
        replay = None
        try:
            step = form.recorded(given.numbers, partial(self._record, code, given))
            replay = StepReplay(step, self._memory(step, form, code, given))
        except UnrecordedError as error:
            self._warn(f"{error}; it is not replayed")
        form.lists[form.key(given.numbers)] = replay
        self._forms[form.kind] = form
        return replay

    def _memory(
        self, step: RecordedStep, form: CallForm, code: StepCode, given: "Given"
    ) -> Callable[[], Memory]:
        """Returns what makes the memory of a recorded step, on the device of its parameters."""
        if code.on.is_host:
            if not all(backend.of(array).is_host for array in given.arrays):
                raise UnrecordedError("an argument is on a device, and no parameter is")
            return partial(on_host, step)
        capture = STEP_GRAPHS.needed(code.on.name)
        return partial(capture, step, code.on, self._function, code, given[:2], form.places)

    def _drop_oldest(self) -> bool:
        """Drops the oldest list if as many are kept as may be; returns True if it was not used."""
        if sum(len(form.lists) for form in self._forms.values()) < MOST_LISTS:
            return False
        form = next(form for form in self._forms.values() if form.lists)
        oldest = form.lists.pop(next(iter(form.lists)))
        if not form.lists:
            del self._forms[form.kind]
        return oldest is not None and not oldest.is_used

    def _compared(self, form: CallForm, code: StepCode, replay: StepReplay, given: "Given") -> Any:
        """Runs the step as written and then, from the same state, as a list of kernels. Unless
        results and state have the same bits, the list is not replayed again. Returns what the
        user's function returns."""
        inputs = form.inputs(given.numbers)
        at_first = StepState(replay, code)
        result = self._function(*given.args, **given.named)
        wanted = StepState(replay, code)
        at_first.restore()
        try:
            other = replay(given.arrays, inputs)
        except CheckError:  # the step goes on if a label is wrong
            wanted.restore()
            return result
        except NumbersReadError as error:
            wanted.restore()
            self._refuse(form, inputs, given, str(error))
            return result
        if bits_of(other) == bits_of(result) and wanted.is_same(StepState(replay, code)):
            replay.compared.add(texts_of(inputs))
            return other
        wanted.restore()
        self._refuse(form, inputs, given, "recorded, the step has other bits than as written")
        return result

    def _refuse(self, form: CallForm, inputs: Sequence[Any], given: "Given", reason: str) -> None:
        """Drops a list that may not be replayed, and warns; if numbers are inputs of it, the step
        is recorded once more with all numbers as constants."""
        if inputs:
            form.use_constants()
        else:
            form.lists[form.key(given.numbers)] = None
            self._warn(f"{reason}; it is not replayed", 1)

    def _warn(self, message: str, deeper: int = 0) -> None:
        name = getattr(self, "__qualname__", "a step")
        warnings.warn(f"nnmpi.compile: {name}: {message}", stacklevel=5 + deeper)

    def _record(self, code: StepCode, given: "Given", inputs: Collection[int]) -> RecordedStep:
        try:
            once = partial(record_step, self._function, code, *given[:2], inputs)
            step, *others = repeated(once)
            are_same = all(map(step.is_same, others))
        except NumbersReadError as error:
            raise ValueError(f"nnmpi.compile: {_place_of(error)}{error}") from None
        except Exception as error:  # the step as written tells about it
            raise UnrecordedError(
                f"{_place_of(error)}{type(error).__name__} where values are not known"
            ) from None
        if not are_same:
            raise ValueError(
                "nnmpi.compile: recorded again, the step is not the same: it reads values, or "
                "draws random numbers that are not nnmpi's"
            )
        return step


class Given(NamedTuple):
    """The arguments of a call, and the arrays and numbers among them."""

    args: Sequence[Any]
    named: dict[str, Any]
    arrays: Sequence[Array]
    numbers: Sequence[Any]


def _keeps_gradient(parameters: Sequence[Parameter]) -> bool:
    """True if the program keeps a gradient of these parameters, as a tensor or an array."""
    return any(p.given_grad is not None and p.given_grad() is not None for p in parameters)


def _sort(arrays: list[Array], plain: list[Any], numbers: list[Any], value: Any) -> None:
    """Splits an argument of a compiled step: appends the arrays in it to `arrays`, numbers to
    `numbers`, and all else (types, lengths, texts) to `plain`. A later call with an equal `plain`
    can replay the recording, if those numbers are equal that are constants of it."""
    if type(value) is np.ndarray:
        if value.dtype.hasobject:
            raise ValueError("nnmpi.compile: an argument is an array of objects; pass numbers")
        arrays.append(value)
        plain.append(np.ndarray)
    elif type(value) in (Tensor, ParameterData):
        if value._requires_grad:
            raise ValueError("nnmpi.compile: an argument requires a gradient; pass its values")
        arrays.append(value._array)
        plain.append((Tensor, type(value._array)))
    elif type(value) in (tuple, list, dict):
        if isinstance(value, dict) and not all(map(is_plain, value)):
            raise ValueError("nnmpi.compile: keys of an argument are neither numbers nor texts")
        keys = map(compared, value) if isinstance(value, dict) else ()
        plain.append((type(value), len(value), *keys))
        for item in value.values() if isinstance(value, dict) else value:
            _sort(arrays, plain, numbers, item)
    elif type(value) in NUMBERS:
        plain.append(type(value))
        numbers.append(value)
    elif is_plain(value):
        plain.append((type(value), repr(value)))
    elif is_array(value) and not isinstance(value, Tensor | np.ndarray):  # of a device
        arrays.append(value)
        plain.append(type(value))
    else:
        raise ValueError(
            f"nnmpi.compile: an argument is a {type(value).__name__}: pass arrays, tensors, "
            "numbers and texts"
        )


def _place_of(error: BaseException) -> str:
    """Returns the line of the user's file that raised, for a message."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if not any(map(path.is_relative_to, PACKAGES)):
            place = f"{path.name}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place


PACKAGES = [Path(sys.modules[name].__path__[0]) for name in ("nnmpi", "numpy")]
