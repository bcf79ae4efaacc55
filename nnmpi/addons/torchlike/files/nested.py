"""Nested dictionaries in a safetensors file: tensors by name, and the structure in the metadata.

{"model": {"w": array}, "epoch": 3, "sizes": (1, 2)}

tensors     model.w
structure   {"dict": [["model", {"dict": [["w", {"tensor": "model.w"}]]}], ["epoch", 3], ...
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnmpi.autograd import on_host
from nnmpi.io.files.atomic import NotSavedError
from nnmpi.io.files.saving import WRITE, is_array
from nnmpi.options.quoting import shown

SCALARS = str, int, float, bool, type(None)


def flattened(state: Any, path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], str]:
    """Splits a nested state (dicts, lists and tuples with arrays) in two: its arrays by name, such
    as "model.w", and everything else as JSON text, with names in place of arrays."""
    arrays = dict[str, np.ndarray]()

    def name_of(keys: tuple[Any, ...]) -> str:
        name = ".".join(map(str, keys)) or "tensor"
        while name in arrays:  # {"a.b": x, "a": {"b": y}}
            name += "_"
        return name

    def part(value: Any, keys: tuple[Any, ...]) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str | int):
                    raise _refusal(path, (*keys, key), key, "a key that is a", "strings or numbers")
            return {"dict": [[key, part(item, (*keys, key))] for key, item in value.items()]}
        if isinstance(value, list):
            return [part(item, (*keys, i)) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": [part(item, (*keys, i)) for i, item in enumerate(value)]}
        if is_array(value):
            name = name_of(keys)
            arrays[name] = np.asarray(on_host(value))
            return {"tensor": name}
        advice = "an array, a number, a string, or a list, tuple or dict of these"
        if hasattr(value, "state_dict"):
            advice = f"its .state_dict(), as in {WRITE}"
        raise _refusal(path, keys, value, "a", advice)

    try:
        return arrays, json.dumps(part(state, ()))
    except RecursionError:
        raise NotSavedError(
            f"cannot save {shown(path)}: lists and dictionaries lie in each other too deep, or in "
            "themselves; give a tree of them"
        ) from None


def _refusal(
    path: str | os.PathLike[str], keys: tuple[Any, ...], value: Any, is_a: str, advice: str
) -> NotSavedError:
    where = shown("".join(f"[{key!r}]" for key in keys))
    return NotSavedError(
        f"cannot save {shown(path)}: state{where} is {is_a} {type(value).__name__}: give {advice}"
    )


def restored(text: str, tensors: Mapping[str, Any], path: str | os.PathLike[str]) -> Any:
    """Returns the nested state of which `flattened` has made the JSON `text`, with `tensors`;
    raises ValueError if they do not fit together."""

    def part(value: Any) -> Any:
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, list):
            return [part(item) for item in value]
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "tuple":
            return tuple(part(item) for item in content)
        return {key: part(item) for key, item in content}

    try:
        return part(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(
            f"cannot load {shown(path)}: the structure in its metadata does not fit its tensors; "
            "take an intact copy"
        ) from None
