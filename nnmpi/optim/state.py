"""The state of an optimizer by name: state arrays in the shapes of parameters, and step counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.nn.place import Place
from nnmpi.nn.state import checked_arrays

STEP = "step"


def name_of(place: Place, name: str) -> str:
    """Returns the name in a state dict of the state array or step count of the parameter at
    `place`; raises ValueError if that could be read in another way."""
    if not {*".@"}.isdisjoint(name):
        raise ValueError(f"a state array is called {name!r}: leave out {'.'!r} and {'@'!r}")
    return f"{place.path}.{name}" if place.path else name


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


def checked(state: Mapping[str, Any], entries: Iterable[Place]) -> dict[str, np.ndarray]:
    """Returns the arrays of a state dict on the host; raises ValueError unless they are these
    entries, with numbers of updates that can be."""
    entries = [Place.of_whole(entry.path, entry.shape) for entry in entries]
    values = checked_arrays(state, [*dict.fromkeys(entries)], "optimizer")
    for name in (name for name in values if name.rpartition(".")[2] == STEP):
        count = values[name].item()
        if not (count >= 0 and count == count // 1):
            raise ValueError(f"{name} is {count}: it must be a whole number of at least 0")
    return values
