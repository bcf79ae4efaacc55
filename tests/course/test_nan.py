"""NaN in place of a number gets no points: each comparison with it has to fail."""

from pathlib import Path

import pytest
from helpers.course import faults, solution

from classroom.remote import StudentProcess

NAN = """
import numpy as np


def as_nan(value):
    if isinstance(value, tuple):
        return as_nan(value[0]), *value[1:]
    if isinstance(value, np.ndarray | float | int | np.generic):
        return np.full(np.shape(value), np.nan)[()]
    if isinstance(value, list):
        return [as_nan(v) for v in value]
    if hasattr(value, "data"):
        value.data = as_nan(value.data)
    return value


def giving_nan(function):
    def call(*arguments, **named):
        result = function(*arguments, **named)
        for array in [*arguments, getattr(arguments[0], "values", None)]:
            if isinstance(array, np.ndarray) and array.dtype == float:
                array[...] = np.nan
        return as_nan(result)
    return call


NAME = giving_nan(NAME)
"""
NUMBERS = {
    "all-reduce": (
        *(("server_all_reduce", "server sums"), ("ring_all_reduce", "ring sums")),
        *(("tree_all_reduce", "tree sums"), ("tree_all_reduce", "same bits")),
        *(("cost", "cost by formula"), ("cost", "measured"), ("ring_all_reduce", "measured")),
        *(("crossover", "crossover"), ("seconds_of", "stopwatch")),
    ),
    "autograd": (
        *(("matmul", "matmul"), ("log", "log"), ("relu", "relu"), ("take", "take")),
        *(("cross_entropy", "cross_entropy"), ("cross_entropy", "training")),
        *(("summed_to", "broadcasting"), ("summed_to", "used twice"), ("summed_to", "deep chain")),
        *(("summed_to", "order of visits"), ("summed_to", "two passes")),
    ),
    "data-parallelism": (
        ("GradientSync.finish", "gradients"),
        ("GradientSync.finish", "training"),
        ("ShardedAdam.step", "sharded Adam"),
    ),
    "pipelines": (("bubble", "formulas"), ("held", "formulas")),
    "tensor-parallelism": (
        *(("copy", "copy"), ("reduce", "reduce"), ("column_linear", "column linear")),
        *(("row_linear", "row linear"), ("mlp", "mlp"), ("attention", "attention")),
        *(("cross_entropy", "cross-entropy"), ("cross_entropy", "bytes of cross-entropy")),
        ("cross_entropy", "training"),
    ),
    "layouts": (
        *(("dp_bytes", "dp bytes"), ("fsdp_bytes", "fsdp bytes"), ("tp_bytes", "tp bytes")),
        *(("mixed_bytes", "mixed bytes"), ("compute_seconds", "seconds"), ("memory", "memory")),
        *(("dp_tokens", "tokens a rank"), ("fsdp_tokens", "tokens a rank")),
        *(("dp_or_tp_tokens", "dp or tp"), ("best_mesh", "best mesh")),
    ),
}
"""Functions that are made to give NaN, and a check that looks at their numbers."""


@pytest.mark.parametrize(
    ("assignment", "name", "check"), [(a, *row) for a, rows in NUMBERS.items() for row in rows]
)
def test_nan_gets_no_points(
    assignment: str, name: str, check: str, process: StudentProcess, tmp_path: Path
) -> None:
    text, adapters = solution(assignment).read_text(encoding="utf-8"), tmp_path / "adapters.py"
    adapters.write_text(text + NAN.replace("NAME", name), encoding="utf-8")
    fault = faults(assignment, adapters, process, check)[check]
    assert "nan" in fault
    assert "check itself failed" not in fault
