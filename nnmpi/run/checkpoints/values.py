"""Values of Python and NumPy as JSON, and back, exactly.

(0.9, 0.999)      {"tuple": [0.9, 0.999]}
inf               {"float": "inf"}
np.float32(0.1)   {"numpy": ["float32", 0.10000000149011612]}
an array          {"array": 0}: the first one of a list, which is written elsewhere
{"tuple": 1}      {"dict": {"tuple": 1}}: what looks like one of these
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.nn.tensor_files import TYPES
from nnmpi.options.quoting import shown
from nnmpi.run.checkpoints.located import TYPE_NAMES
from nnmpi.run.checkpoints.schema import checked, refused

MARKS: dict[str, Any] = {
    "tuple": tuple[Any, ...],
    "float": str,
    "numpy": tuple[Annotated[str, TYPE_NAMES], Any],
    "array": int,
    "dict": Mapping[str, Any],
}
"""The type of what is behind each mark."""


def as_json(value: Any, arrays: list[np.ndarray]) -> Any:
    """The value for json.dumps; its arrays are appended to the list.

    Raises ValueError for what JSON cannot hold.
    """
    if isinstance(value, np.generic) and value.dtype.name in TYPES:
        return {"numpy": [value.dtype.name, as_json(value.item(), arrays)]}
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray) and value.dtype.name in TYPES:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple | list):
        items = [as_json(item, arrays) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        found = {key: as_json(item, arrays) for key, item in value.items()}
        return {"dict": found} if len(found) == 1 and found.keys() <= MARKS.keys() else found
    kind = "a dict whose keys are not all texts" if isinstance(value, Mapping) else repr(value)
    if isinstance(value, np.ndarray):
        kind = f"an array of {value.dtype}"
    raise ValueError(
        f"a checkpoint cannot hold {shown(kind)} (of type {type(value).__name__}): give numbers, "
        "texts, arrays, and lists, tuples and dicts of them"
    )


def from_json(value: Any, arrays: Sequence[Any], field: str) -> Any:
    """The value that `as_json` was given; raises DamagedError, with the path of the field, for what
    it has not returned."""

    def items(row: Any) -> list[Any]:
        return [from_json(item, arrays, f"{field}[{i}]") for i, item in enumerate(row)]

    if isinstance(value, list):
        return items(value)
    if not isinstance(value, dict):
        return value
    mark, inner = next(iter(value.items())) if len(value) == 1 else ("", value)
    found: Mapping[str, Any] = value
    if mark in MARKS:
        inner = checked(inner, MARKS[mark], field)
        try:
            if mark == "tuple":
                return tuple(items(inner))
            if mark == "float":
                return float(inner)
            if mark == "numpy":
                return named(inner[0]).type(from_json(inner[1], arrays, field))
            if mark == "array":
                return arrays[inner]
        except (IndexError, TypeError, ValueError) as error:
            raise refused(field, f"no value: {shown(error)}") from None
        found = inner
    return {key: from_json(item, arrays, f"{field}.{key}") for key, item in found.items()}
