"""Calls that are logged on arrays without data, made later on memory, give NumPy's bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_meta import ARRAYS, FUNCTIONS

from nnmpi import nn
from nnmpi.arrays import meta
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, logged_calls
from nnmpi.arrays.meta.memory_plan import Binding, Lifetime, lifetimes, plan
from nnmpi.nn.pass_list import record

rng = np.random.default_rng(0)


def logged(function: Callable[..., Any], *arrays: Any) -> tuple[Any, list[Call]]:
    with logged_calls() as calls:
        return function(*arrays), calls


def made_later(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Logs a function of arrays without data, then makes its calls on these arrays."""
    stand_ins = [*map(meta.like, arrays)]
    result, calls = logged(function, *stand_ins)
    given = {*map(id, stand_ins)}
    alive = lifetimes(calls, [(result, len(calls))])
    memory = plan(a for key, a in alive.items() if key not in given)
    binding = Binding(memory, zip(stand_ins, arrays, strict=True))
    for call in map(binding.call, calls):
        call.function(*call.args, **call.options)
    return binding.array(result)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_that_live_at_one_time_have_places_apart(seed: int) -> None:
    draw = np.random.default_rng(seed)
    arrays = [
        Lifetime(np.empty(draw.integers(1, 300), np.uint8), first, first + int(draw.integers(0, 9)))
        for first in draw.integers(0, 20, 30).tolist()
    ]
    offsets, size = plan(arrays)
    for k, a in enumerate(arrays):
        assert 0 <= offsets[id(a.array)] <= size - a.room
        for b in arrays[:k]:
            if a.first <= b.last and b.first <= a.last:
                start, other = offsets[id(a.array)], offsets[id(b.array)]
                assert start + a.room <= other or other + b.room <= start
    at_once = max(sum(a.room for a in arrays if a.first <= t <= a.last) for t in range(30))
    assert at_once <= size <= 1.3 * at_once


def test_a_check_of_computed_values_is_not_moved_before_them() -> None:
    """Checks come first in a list, so that nothing was done if one fails."""

    def loss_of(table: Any, inputs: Any) -> Any:
        return table(inputs[0] + 1).sum()

    index = np.arange(4)
    with pytest.raises(NumbersReadError, match="a check of computed values"):
        record(nn.Embedding(6, 2), loss_of, [index], index, None)
    passes = record(nn.Embedding(6, 2), lambda t, x: t(x[0]).sum(), [index], index, None)
    assert passes.calls[0].is_check


def test_an_array_with_data_is_not_written() -> None:
    with pytest.raises(NumbersReadError, match="writing to an array with data"):
        logged(lambda x: np.zeros(3).__iadd__(x), meta.like(np.ones(3)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_made_later_have_numpys_bits(name: str) -> None:
    for view in ARRAYS.values():
        arrays = [rng.random((3, 4, 5, 6)).astype("float32") for _ in range(2)]

        def function(x: Any, y: Any, view: Callable[[Any], Any] = view) -> Any:
            return FUNCTIONS[name](view(x), view(y))

        try:
            wanted = np.asarray(function(*(a.copy() for a in arrays)))
        except (ValueError, IndexError):  # of arrays without elements
            continue
        got = made_later(function, *arrays)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()
