"""Test cases of ops: joins of branches."""

from functools import reduce as folded
from typing import Any

from helpers.ops.opcases import Case

from nnmpi.addons.layer_ways import branch_ops as branches


def _joined(t: Any, *parts: Any, join: str, axis: int = -1) -> Any:
    if join in ("concat", "stack"):
        return (t.cat if join == "concat" else t.stack)(parts, dim=axis)
    total = folded(lambda a, b: a + b, parts)
    return total / len(parts) if join == "mean" else total


def _joins() -> dict[str, Case]:
    same, wide = (2, 3, 4), (2, 5, 4)
    tries: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "sum": ((same, same, same), {"join": "sum"}),
        "sum of one": ((same,), {"join": "sum"}),
        "mean": ((same, same, same), {"join": "mean"}),
        "concat": ((same, wide, same), {"join": "concat", "axis": 1}),
        "concat of the last axis": ((same, same), {"join": "concat"}),
        "stack": ((same, same), {"join": "stack", "axis": 1}),
        "stack behind": ((same, same, same), {"join": "stack"}),
    }
    return {
        f"joined: {name}": Case(branches.joined, sizes, _joined, options)
        for name, (sizes, options) in tries.items()
    }


BRANCHES = _joins()
