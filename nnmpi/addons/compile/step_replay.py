"""StepReplay: a recorded step of a user's training loop (`nnmpi.compile`), whose arrays have
memory, so that it is replayed by calling it."""

from collections.abc import Iterator, Sequence
from operator import setitem
from typing import Any

import numpy as np

from nnmpi.addons.compile.number import Number, filled
from nnmpi.addons.compile.recorded_step import RecordedStep, has_number, is_computed
from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.log import UnlikeError, assign
from nnmpi.arrays.meta.memory_plan import Binding, arena_of, lifetimes, places_in, places_of, plan
from nnmpi.arrays.meta.shapes import owner
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import tick
from nnmpi.nn.graph import leaves, mapped
from nnmpi.nn.seeding import next_draw, seed_state


class CheckError(Exception):
    """Raised if the arguments of a recorded step have values that a recorded check refuses, such as
    a label out of range."""


class StepReplay:
    """A recorded step in memory, replayed by calling it."""

    def __init__(self, recorded: RecordedStep) -> None:
        calls, roots = recorded.calls, recorded.roots
        words = *(key.words for key, _, _ in roots.keys), *roots.draws
        others = [(a, 0) for a in (*recorded.inputs, *words)]
        others += [(a, len(calls)) for a in recorded.outputs]
        given = places_of(recorded.given)
        places = plan(a for key, a in lifetimes(calls, others).items() if key not in given)
        binding = Binding(given, places_in(arena_of(places.size), places))
        self._recorded, self.memory = recorded, [array for _, array in recorded.given]
        self._owners = {id(owner(array)) for array in self.memory}
        self._inputs = [*map(binding.array, recorded.inputs)]
        self._keys = [(binding.array(k.words), k, m, earlier) for k, m, earlier in roots.keys]
        self._draws = [*map(binding.array, roots.draws)]
        bound = [binding.call(call)[:3] for call in calls]
        first = max((k + 1 for k, call in enumerate(calls) if call.is_check), default=0)
        self._checks, self._calls = bound[:first], bound[first:]
        self._outputs = [*map(binding.array, recorded.outputs)]
        self._with_numbers = [
            (calls, k, call)
            for calls in (self._checks, self._calls)
            for k, call in enumerate(calls)
            if has_number(call)
        ]
        self._limits = {limit for *_, call in self._with_numbers for limit in _limits(call)}
        self.is_used, self.compared = False, set[tuple[str, ...]]()

    def lacks_comparison(self, numbers: Sequence[Any]) -> bool:
        """True if the list has yet to be compared with the step as written: once, or, if numbers
        are inputs, for two values of them."""
        if len(self.compared) > bool(numbers):
            return False
        return texts_of(numbers) not in self.compared

    def __call__(self, arrays: Sequence[Array], numbers: Sequence[Any]) -> Any:
        """Replays the step with these arguments; returns what the step returns.

        Raises CheckError, before anything has changed, if an argument has values that the step does
        not take, or lies in the memory of a parameter, a gradient or a buffer.
        """
        if numbers:
            self._fill(numbers)
        if any(array.base is not None and id(owner(array)) in self._owners for array in arrays):
            raise CheckError  # the step as written sees its updates in this argument
        for memory, array in zip(self._inputs, arrays, strict=True):
            np.copyto(memory, array)
        try:
            for function, args, options in self._checks:
                function(*args, **options)
        except (ValueError, UnlikeError) as error:
            raise CheckError from error
        for words, (seed, purpose, names, _), module, earlier in self._keys:
            words[...] = keyed.key(seed, purpose, module.passes + earlier, *names)
        for words in self._draws:
            drawn = next_draw()
            words[...] = keyed.key(drawn.seed, "tensor", drawn.draws)
        if made := self._recorded.made:
            state = seed_state.get()
            seed_state.set(state._replace(number=state.number + made))
        for function, args, options in self._calls:
            function(*args, **options)
        if self._recorded.written:
            time = tick()
            for p in self._recorded.written:
                p.storage.written = time
        for module, counted in self._recorded.roots.calls:
            if counted:
                object.__setattr__(module, "passes", module.passes + 1)
        result, outputs = self._recorded.result, iter(self._outputs)
        if type(result) is Tensor:  # the most frequent one
            return Tensor(next(outputs).copy(order="K"))

        def computed(leaf: Any) -> Any:
            if not is_computed(leaf):
                return leaf
            array = next(outputs).copy(order="K")
            return Tensor(array) if isinstance(leaf, Tensor) else array[()]

        return mapped(computed, result)

    def _fill(self, numbers: Sequence[Any]) -> None:
        """Puts the values of the numbers that are inputs into the calls."""
        try:
            values = self._recorded.numbers.values(numbers)
        except (ArithmeticError, UnlikeError) as error:  # the step as written raises it too
            raise CheckError from error
        if any(not low <= values[k] <= high for k, low, high in self._limits):
            raise CheckError  # NumPy raises OverflowError in the middle of the step
        for calls, k, call in self._with_numbers:
            calls[k] = filled(call, values)


def _limits(call: Any) -> Iterator[tuple[int, int, int]]:
    """Yields the places of those Numbers of a call that have to fit into an array of integers
    beside them, with the smallest and the largest integer of that array."""
    parts = leaves(call)
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    for part in parts:
        if type(part) is Number and (isinstance(part, int) or call[0] in (assign, setitem)):
            for info in {np.iinfo(array.dtype) for array in arrays}:
                yield part.index, int(info.min), int(info.max)


def texts_of(numbers: Sequence[Any]) -> tuple[str, ...]:
    """Returns numbers as texts, for comparison: 0.0 differs from -0.0, and NaN equals NaN."""
    return tuple(map(repr, numbers))
