"""The state of an optimizer by name: running sums in the shapes of parameters, and step counts.

A row is a parameter in the order of its memory. Of a row, a rank has the stretches that it updates,
one behind the other:

    row        [ a b c d e f g | padding ]
    stretches    (1, 3)  (5, 8)
    own        [ b c f g 0 ]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from nnmpi.nn.parameter import inverse
from nnmpi.nn.place import Place
from nnmpi.nn.state import fitting

Stretch: TypeAlias = tuple[int, int]
"""(start, stop) in a row."""

STEP = "step"


def name_of(place: Place, name: str) -> str:
    """The name in a state of a number or a tensor that belongs to the parameter at a place."""
    return f"{place.path}.{name}" if place.path else name


def state_places(places: Iterable[Place], sums: Sequence[str]) -> list[Place]:
    """The name and the shape of everything in the state of the parameters at these places."""
    return [
        entry
        for place in places
        for entry in (
            *(Place.of_whole(name_of(place, name), place.shape) for name in sums),
            Place.of_whole(name_of(place, STEP), ()),
        )
    ]


def check_paths(places: Sequence[Place]) -> None:
    """Raises ValueError if two parameters have the same path."""
    seen: dict[str, int] = {}
    for i, place in enumerate(places):
        first = seen.setdefault(place.path, i)
        if first != i:
            raise ValueError(
                f"parameters {first} and {i} of this optimizer have the same path "
                f"{place.path!r}, by which its state is named: make them parts of one module"
            )


def checked(
    state: Mapping[str, Any], places: Sequence[Place], sums: Sequence[str]
) -> dict[str, np.ndarray]:
    """The arrays of a state on the host; raises ValueError unless they fit these parameters."""
    check_paths(places)
    values = fitting(state, state_places(places, sums), "optimizer")
    for name in (name_of(place, STEP) for place in places):
        count = values[name].item()
        if not (count >= 0 and count == count // 1):
            raise ValueError(f"{name} is {count}: a number of steps is a whole number, 0 or more")
    return values


def length(stretches: Iterable[Stretch]) -> int:
    """The number of elements of all stretches."""
    return sum(stop - start for start, stop in stretches)


def covers(stretches: Iterable[Stretch], size: int) -> bool:
    """Whether they are all of a row, whose padding begins at `size`."""
    return length((min(start, size), min(stop, size)) for start, stop in stretches) == size


def row(own: np.ndarray, stretches: Iterable[Stretch], size: int) -> np.ndarray:
    """A row without padding, zero outside the stretches."""
    found, at = np.zeros(size, own.dtype), 0
    for start, stop in stretches:
        there = found[start:stop]
        there[...] = own[at : at + len(there)]
        at += stop - start
    return found


def own(row: np.ndarray, stretches: Iterable[Stretch]) -> np.ndarray:
    """The stretches of a row, with zeros for padding."""
    stretches = list(stretches)
    found, at = np.zeros(length(stretches), row.dtype), 0
    for start, stop in stretches:
        there = row[start:stop]
        found[at : at + len(there)] = there
        at += stop - start
    return found


def shaped(row: np.ndarray, shape: Sequence[int], layout: tuple[int, ...]) -> np.ndarray:
    """A row as an array of this shape, whose axes are in memory in the order `layout`."""
    memory = row.reshape([shape[k] for k in layout])
    return np.array(memory.transpose(inverse(layout)), order="C")
