"""A step of a loop of one's own as a list of calls, recorded on arrays without data, and its
replay; `compiled.py` decides which list runs."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import setitem
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import keyed, meta
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.array import new_array
from nnmpi.arrays.meta.log import (
    Call,
    assign,
    assign_result,
    log_call,
    logged_calls,
    refused,
)
from nnmpi.arrays.meta.memory_plan import Binding, arena_of, lifetimes, places_in, places_of, plan
from nnmpi.arrays.meta.shapes import owner, refuse
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.graph import leaves, mapped
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.pass_list import KeyedPass, RecordedKey, StandIns, checks_first, without_data
from nnmpi.nn.passes import LOCAL, current_pass
from nnmpi.nn.seeding import SeedState, next_draw, seed_state
from nnmpi.nn.users_code import is_plain
from nnmpi.optim.optimizer import Optimizer, instead_of_step
from nnmpi.optim.step_code import StepCode


class CheckError(Exception):
    """Raised where a check of a step's arguments fails."""


class RootCalls:
    """The modules that a step calls itself: each call is a pass of its own.

    calls  each module, and whether its call counts as a pass
    keys   of random numbers, with the module and the number of its counted calls before
    draws  the words of keys of random tensors
    """

    def __init__(self, code: StepCode) -> None:
        self._known, self.calls = {*code.all_modules}, list[tuple[Module, bool]]()
        self.keys, self.draws = list[tuple[RecordedKey, Module, int]](), list[Any]()

    def around(self, module: Module, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Calls the forward of a module in a pass of its own."""
        if module not in self._known and any(True for _ in module.parameters()):
            refuse(f"a {type(module).__name__} that the step makes")
        earlier = sum(counted for other, counted in self.calls if other is module)
        current = _StepPass(0, None, LOCAL, module.training)
        current.keys, current.draws = list[RecordedKey](), self.draws
        token = current_pass.set(current)
        try:
            return forward(*args, **named)
        finally:
            last: Any = current_pass.get()
            # a loss overrides the method that counts passes
            counts = type(module).__call__ is Module.__call__
            self.calls.append((module, counts and (module.training or last.counted)))
            self.keys += [(key, module, earlier) for key in current.keys]
            current_pass.reset(token)


class _StepPass(KeyedPass):
    """A pass within a recorded step, in which random tensors may be drawn too."""

    draws: list[Any]

    def tensor_key(self, drawn: SeedState) -> keyed.Key:
        words = new_array([4], np.uint32)
        self.draws.append(words)
        return keyed.Key(*(words[i, ...] for i in range(4)))


class _OutsidePass(_StepPass):
    """The pass that is current in a step outside of modules."""

    def key(self, seed: int, purpose: str, *names: str) -> keyed.Key:
        refuse("random numbers of a module that is not called")


class RecordedStep(NamedTuple):
    """A recorded step.

    given      pairs of an array without data and the memory that it stands for
    outputs    the arrays, and those of tensors, that the step returns in `result`
    """

    calls: Sequence[Call]
    given: Sequence[tuple[Any, Array]]
    inputs: Sequence[Any]
    roots: RootCalls
    result: Any
    outputs: Sequence[Any]


def record_step(
    function: Callable[..., Any], code: StepCode, args: Sequence[Any], named: dict[str, Any]
) -> RecordedStep:
    """Records a step on arrays without data."""
    stand_ins, inputs, roots = StandIns(), list[Any](), RootCalls(code)

    def stand_in(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            inputs.append(meta.like(array_of_argument(value)))
            return Tensor(inputs[-1]) if isinstance(value, Tensor) else inputs[-1]
        return value

    present = [p.has_grad for p in code.parameters]

    def note_gradients() -> None:
        nonlocal present
        if present != (present := [p.has_grad for p in code.parameters]):
            log_call(set_gradients, code.parameters, present)

    def update(optimizer: Optimizer, lr_factor: float) -> None:
        if optimizer not in code.optimizers:
            refuse("a step of an optimizer that the step makes")
        note_gradients()
        log_call(optimizer.step, lr_factor=lr_factor)

    given = mapped(stand_in, (tuple(args), named))
    given_memory = {id(owner(array)) for array in inputs}
    outside = _OutsidePass(0, None, LOCAL, True, None, roots.around)
    outside.keys, outside.draws = [], roots.draws
    with ExitStack() as stack:
        assigned = stack.enter_context(without_data(code.modules, code.loose, stand_ins))
        stack.callback(_restore, facts := _facts(code))
        calls = stack.enter_context(logged_calls())
        stack.enter_context(np.errstate(all="ignore"))
        for variable, value in (
            (current_pass, outside),
            (instead_of_step, update),
            (seed_state, seed_state.get()),
        ):
            stack.callback(variable.reset, variable.set(value))  # type: ignore[arg-type]
        result = function(*given[0], **given[1])
        if facts != _facts(code):
            raise NumbersReadError("the step changes a mode, an option or a module")
        if assigned():
            raise NumbersReadError("the step assigns a buffer instead of writing into it")
        if any(call.function is refused for call in calls):
            raise NumbersReadError("the step reads values, and goes on if that is refused")
        if any(id(owner(array)) in given_memory for call in calls for array in _written(call)):
            raise NumbersReadError("the step writes into an argument")
        note_gradients()
    for leaf in leaves(result):
        if not (is_plain(leaf) or (_is_computed(leaf) and not isinstance(leaf, Parameter))):
            raise NumbersReadError(f"the step returns a {type(leaf).__name__}")
    outputs = [array_of_argument(leaf) for leaf in leaves(result) if _is_computed(leaf)]
    calls = checks_first(calls, inputs)
    return RecordedStep(calls, stand_ins.pairs, inputs, roots, result, outputs)


def _written(call: Call) -> Sequence[Any]:
    """The arrays into which a call of an array function writes."""
    name = getattr(call.function, "__name__", "")
    is_first = call.function in (assign, assign_result, setitem) or name == "at"  # of a ufunc
    out = call.options.get("out", ())
    return [*call.args[:is_first], *(out if isinstance(out, tuple) else (out,))]


def _facts(code: StepCode) -> list[Any]:
    """Modes, options and such, which a step must not change."""
    of_modules = [(m, m._changes, m.training, m._hooks) for m in code.all_modules]
    of_parameters = [(p, p.requires_grad) for p in code.parameters]
    groups = [group for optimizer in code.optimizers for group in optimizer.param_groups]
    options = [(group, dict(group)) for group in groups]
    return [of_modules, of_parameters, options, recording.get()]


def _restore(facts: Sequence[Any]) -> None:
    _, of_parameters, groups, records = facts
    recording.set(records)
    for p, requires_grad in of_parameters:
        p.requires_grad = requires_grad
    for group, options in groups:
        group.clear()
        group.update(options)


def set_gradients(parameters: Sequence[Parameter], present: Sequence[bool]) -> None:
    """Tells parameters which of them have a gradient."""
    for p, is_there in zip(parameters, present, strict=True):
        p.has_grad = is_there


class StepReplay:
    """A recorded step on memory."""

    def __init__(self, recorded: RecordedStep) -> None:
        calls, roots = recorded.calls, recorded.roots
        words = *(key.words for key, _, _ in roots.keys), *roots.draws
        uses = [(a, 0) for a in (*recorded.inputs, *words)]
        uses += [(a, len(calls)) for a in recorded.outputs]
        given = places_of(recorded.given)
        places = plan(a for key, a in lifetimes(calls, uses).items() if key not in given)
        binding = Binding(given, places_in(arena_of(places.size), places))
        self._recorded, self.memory = recorded, [array for _, array in recorded.given]
        self._inputs = [*map(binding.array, recorded.inputs)]
        self._keys = [(binding.array(k.words), k, m, earlier) for k, m, earlier in roots.keys]
        self._draws = [*map(binding.array, roots.draws)]
        bound = [binding.call(call)[:3] for call in calls]
        first = sum(call.is_check for call in calls)
        self._checks, self._calls = bound[:first], bound[first:]
        self._outputs = [*map(binding.array, recorded.outputs)]

    def __call__(self, arrays: Sequence[Array]) -> Any:
        """Makes a step on these arguments; returns what the step returns.

        Raises CheckError, and has changed nothing then, if an argument has values that the step
        does not take.
        """
        for memory, array in zip(self._inputs, arrays, strict=True):
            np.copyto(memory, array)
        try:
            for function, args, options in self._checks:
                function(*args, **options)
        except ValueError as error:
            raise CheckError from error
        for words, (seed, purpose, names, _), module, earlier in self._keys:
            words[...] = keyed.key(seed, purpose, module.passes + earlier, *names)
        for words in self._draws:
            drawn = next_draw()
            words[...] = keyed.key(drawn.seed, "tensor", drawn.draws)
        for function, args, options in self._calls:
            function(*args, **options)
        for module, counted in self._recorded.roots.calls:
            if counted:
                object.__setattr__(module, "passes", module.passes + 1)
        result, outputs = self._recorded.result, iter(self._outputs)
        if type(result) is Tensor:  # the most frequent one
            return Tensor(next(outputs).copy(order="K"))

        def computed(leaf: Any) -> Any:
            if not _is_computed(leaf):
                return leaf
            array = next(outputs).copy(order="K")
            return Tensor(array) if isinstance(leaf, Tensor) else array[()]

        return mapped(computed, result)


def _is_computed(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | meta.MetaArray)


def array_of_argument(value: Any) -> Array:
    """The array of a tensor; an array itself."""
    array: Array = value.operand if isinstance(value, Tensor) else value
    return array
