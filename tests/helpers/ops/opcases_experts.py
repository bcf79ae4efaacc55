"""Test cases of ops: joins of branches."""

from functools import reduce
from typing import Any

from helpers.ops.opcases import Case

from nnmpi.autograd.ops import join


def _joined(t: Any, *parts: Any, how: str, axis: int = -1) -> Any:
    if how in ("concat", "stack"):
        return (t.cat if how == "concat" else t.stack)(parts, dim=axis)
    total = reduce(lambda a, b: a + b, parts)
    return total / len(parts) if how == "mean" else total


def _cases() -> dict[str, Case]:
    same, wide = (2, 3, 4), (2, 5, 4)
    tries: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "sum": ((same, same, same), {"how": "sum"}),
        "sum of one": ((same,), {"how": "sum"}),
        "mean": ((same, same, same), {"how": "mean"}),
        "concat": ((same, wide, same), {"how": "concat", "axis": 1}),
        "concat of the last axis": ((same, same), {"how": "concat"}),
        "stack": ((same, same), {"how": "stack", "axis": 1}),
        "stack behind": ((same, same, same), {"how": "stack"}),
    }
    return {
        f"joined: {name}": Case(join.joined, sizes, _joined, options)
        for name, (sizes, options) in tries.items()
    }


EXPERTS = _cases()
