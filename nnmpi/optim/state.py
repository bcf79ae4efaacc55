"""The state of an optimizer by name: state arrays in the shapes of parameters, and step counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.nn.place import Place
from nnmpi.nn.state import checked_arrays

STEP = "step"


def name_of(place: Place, name: str) -> str:
    """Returns the name in a state dict of the state array or step count of the parameter at
    `place`."""
    return f"{place.path}.{name}" if place.path else name


def state_places(places: Iterable[Place], sums: Sequence[str]) -> list[Place]:
    """Returns the name and the shape of each entry in the state dict of the parameters at these
    places."""
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
                f"{place.path!r}, which names their state: make them parts of one module"
            )


def checked(
    state: Mapping[str, Any], places: Sequence[Place], sums: Sequence[str]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a state dict on the host; raises ValueError unless they fit the
    parameters."""
    check_paths(places)
    values = checked_arrays(state, state_places(places, sums), "optimizer")
    for name in (name_of(place, STEP) for place in places):
        count = values[name].item()
        if not (count >= 0 and count == count // 1):
            raise ValueError(f"{name} is {count}: it must be a whole number of at least 0")
    return values
