"""Calls that are logged on arrays without data, made later on memory, give NumPy's bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_meta import ARRAYS, FUNCTIONS

from nnmpi.arrays import meta
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, logged_calls
from nnmpi.arrays.meta.memory_plan import (
    Binding,
    Lifetime,
    arena_of,
    lifetimes,
    places_in,
    places_of,
    plan,
    plan_in_parts,
)

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
    given = places_of(zip(stand_ins, arrays, strict=True))
    binding = Binding(places_in(arena_of(memory.size), memory), given)
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


def test_arrays_of_one_part_lie_in_holes_of_the_kept_ones_or_in_the_scratch_arena() -> None:
    """Parts are calls 0 to 2, and 3 to 5. Two arrays that overlap in time have places apart."""
    lives = {
        "a": (0, 4, 640),
        "b": (1, 5, 320),
        "c": (0, 1, 256),
        "d": (5, 5, 600),
        "e": (2, 2, 64),
    }
    arrays = {
        name: Lifetime(np.empty(size, np.uint8), first, last)
        for name, (first, last, size) in lives.items()
    }
    arrays |= {f"empty {n}": Lifetime(np.empty((0, n)), 0, 5) for n in (2, 3)}
    kept, scratch = plan_in_parts([*arrays.values()], (0, 3), 2)
    name_of = {id(life.array): name for name, life in arrays.items()}
    of_kept = {name_of[key] for key in kept.offsets}
    assert of_kept == {"a", "b", "d", "empty 2", "empty 3"}  # d lies where a was
    assert {name_of[key] for key in scratch.offsets} == {"c", "e"}
    assert (kept.size, scratch.size) == (960, 256)
    alone, none = plan_in_parts([*arrays.values()], (0, 3), 1)
    assert (alone.size, none.size) == (1216, 0)  # of a, b and c at once
    for plan_ in (kept, scratch, alone):
        placed = [(plan_.offsets[key], arrays[name_of[key]]) for key in plan_.offsets]
        for start, one in placed:
            for other_start, other in placed:
                if one is not other and one.first <= other.last and other.first <= one.last:
                    assert start + one.room <= other_start or other_start + other.room <= start
