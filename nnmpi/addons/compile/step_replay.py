"""StepReplay: a recorded step of a user's training loop (`nnmpi.compile`), whose arrays have
memory, so that it is replayed by calling it."""

from collections.abc import Callable, Iterator, Sequence
from operator import setitem
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.compile.number import Number, Numbers, filled
from nnmpi.addons.compile.recorded_step import RecordedStep, has_number, is_computed
from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.log import Call, UnlikeError, arrays_in, assign
from nnmpi.arrays.meta.memory_plan import Binding, arena_of, lifetimes, places_in, places_of, plan
from nnmpi.arrays.meta.shapes import owner
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import tick
from nnmpi.nn.graph import leaves, mapped
from nnmpi.nn.layers.basic import check_rows
from nnmpi.nn.module import Module
from nnmpi.nn.record import RecordedKey
from nnmpi.nn.seeding import next_draw, seed_state


class CheckError(Exception):
    """Raised if the arguments of a recorded step have values that a recorded check refuses, such as
    a label out of range."""


class Memory(NamedTuple):
    """The memory of a recorded step, and its calls on that memory.

    inputs    the arrays into which the arguments are copied
    keys      for each key of random numbers: the array of its words, the key, the module that used
              it, and how many earlier calls of this module count as passes
    draws     arrays for the keys of random tensors
    checks    calls that check arguments; they come first, and change nothing that lasts
    calls     all other calls
    outputs   the arrays of the results
    numbers   the numbers that are inputs, and what is computed of them
    """

    inputs: Sequence[Array]
    keys: Sequence[tuple[Array, RecordedKey, Module, int]]
    draws: Sequence[Array]
    checks: list[Call]
    calls: list[Call]
    outputs: Sequence[Array]
    numbers: Numbers


def on_host(recorded: RecordedStep) -> Memory:
    """Returns memory for a recorded step on the host."""
    calls, roots = recorded.calls, recorded.roots
    words = *(key.words for key, _, _ in roots.keys), *roots.draws
    others = [(a, 0) for a in (*recorded.inputs, *words)]
    others += [(a, len(calls)) for a in recorded.outputs]
    given = places_of(recorded.given)
    places = plan(a for key, a in lifetimes(calls, others).items() if key not in given)
    binding = Binding(given, places_in(arena_of(places.size), places))
    bound, first = [*map(binding.call, calls)], recorded.checks
    return Memory(
        [*map(binding.array, recorded.inputs)],
        [(binding.array(key.words), key, m, earlier) for key, m, earlier in roots.keys],
        [*map(binding.array, roots.draws)],
        bound[:first],
        bound[first:],
        [*map(binding.array, recorded.outputs)],
        recorded.numbers,
    )


def checks_on_host(
    recorded: RecordedStep, arguments: Sequence[Array]
) -> tuple[Sequence[Call], bool]:
    """Returns the checks of a recorded step's arguments, as calls on the host, without those that
    read an argument on a device, since the host would wait for it; and whether they check all
    labels. Rows of an Embedding are not checked in a graph anyway.

    arguments   the memory of each array among the arguments
    """
    inputs = [*zip(recorded.inputs, arguments, strict=True)]
    given = places_of((a, memory) for a, memory in inputs if isinstance(memory, np.ndarray))
    skipped = {id(owner(a)) for a, memory in inputs if not isinstance(memory, np.ndarray)}
    checks, check_labels = list[Call](), True
    for call in recorded.calls[: recorded.checks]:
        if skipped.isdisjoint(id(owner(array)) for array in arrays_in(call.args)):
            checks.append(call)
        elif not call.is_check:
            skipped.add(id(owner(call.args[0])))
        elif call.function is not check_rows:
            check_labels = False
    places = plan(a for key, a in lifetimes(checks, ()).items() if key not in given)
    binding = Binding(given, places_in(arena_of(places.size), places))
    return [*map(binding.call, checks)], check_labels


class StepReplay:
    """A recorded step in memory, replayed by calling it.

    make   makes its memory when it is called for the first time, after a run as written: by then
           the state of optimizers is there
    """

    def __init__(self, recorded: RecordedStep, make: Callable[[], Memory]) -> None:
        self._recorded, self.memory = recorded, [array for _, array in recorded.given]
        self._owners = {id(owner(array)) for array in self.memory}
        self._make = make
        self._bound: Memory | None = None
        self.is_used, self.compared = False, set[tuple[str, ...]]()

    def _prepare(self) -> Memory:
        """Makes the memory, and finds the calls of which Numbers are arguments."""
        memory = self._bound = self._make()
        del self._make  # it keeps the arguments of a call
        self._with_numbers = [
            (calls, k, call)
            for calls in (memory.checks, memory.calls)
            for k, call in enumerate(calls)
            if has_number(call)
        ]
        self._limits = {limit for *_, call in self._with_numbers for limit in _limits(call)}
        return memory

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
        bound = self._bound or self._prepare()
        if numbers:
            self._fill(bound.numbers, numbers)
        if any(array.base is not None and id(owner(array)) in self._owners for array in arrays):
            raise CheckError  # the step as written sees its updates in this argument
        for memory, array in zip(bound.inputs, arrays, strict=True):
            memory[...] = array
        try:
            for function, args, options, _ in bound.checks:
                function(*args, **options)
        except (ValueError, UnlikeError) as error:
            raise CheckError from error
        for words, (seed, purpose, names, _), module, earlier in bound.keys:
            words[...] = keyed.key(seed, purpose, module.passes + earlier, *names)
        for words in bound.draws:
            drawn = next_draw()
            words[...] = keyed.key(drawn.seed, "tensor", drawn.draws)
        if made := self._recorded.made:
            state = seed_state.get()
            seed_state.set(state._replace(number=state.number + made))
        for function, args, options, _ in bound.calls:
            function(*args, **options)
        if self._recorded.written:
            time = tick()
            for p in self._recorded.written:
                p.storage.written = time
        for module, counted in self._recorded.roots.calls:
            if counted:
                object.__setattr__(module, "passes", module.passes + 1)
        result, outputs = self._recorded.result, iter(bound.outputs)
        if type(result) is Tensor:  # the most frequent one
            return Tensor(next(outputs).copy(order="K"))

        def computed(leaf: Any) -> Any:
            if not is_computed(leaf):
                return leaf
            array = next(outputs).copy(order="K")
            return Tensor(array) if isinstance(leaf, Tensor) else array[()]

        return mapped(computed, result)

    def _fill(self, computed: Numbers, numbers: Sequence[Any]) -> None:
        """Puts the values of the numbers that are inputs, and of those `computed` of them, into the
        calls."""
        try:
            values = computed.values(numbers)
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
