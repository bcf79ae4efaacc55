"""Collectives by plan: the algorithms that the interpreter carries out on the ranks of a call."""

from nnmpi.collectives.algorithms import rooted
from nnmpi.collectives.step import Algorithm
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import (
    FAMILIES,
    Array,
    Parts,
    as_integers,
    bounds_of,
    flat,
    parts_text,
    put_back,
    unknown,
)
from nnmpi.comm.call_log import CallRecord
from nnmpi.comm.calls import Calls
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import TAGS


def planned_steps(
    calls: Calls,
    interpreter: Interpreter,
    operation: str,
    name: str,
    array: Array,
    parts: Parts = None,
    starts: bool = False,
    root: int = -1,
    plan: Algorithm | None = None,
) -> tuple[Steps, CallRecord]:
    """An operation by one of the algorithms of its family, or by another plan."""
    algorithms, moves_only = FAMILIES[operation]
    plan = plan or algorithms.get(name)
    if plan is None:
        raise unknown(name, operation, tuple(algorithms))
    row, bounds = flat(array, operation), None
    if parts is not None:
        bounds = bounds_of(parts, row.size, calls.transport.size, operation)
        name = f"{name}, {parts_text(parts)}"
    call = calls.log(operation, name, row.size, row.dtype, root)
    data = as_integers(row) if moves_only else row
    blocks = not starts and calls.progress.idle
    plan = plan if root < 0 else rooted(plan, root)
    steps = interpreter.steps(plan, data, call[1] % TAGS, blocks, bounds=bounds)
    return put_back(steps, row, array), call
