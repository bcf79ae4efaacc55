"""Values of a checkpoint as JSON."""

import json
from typing import Any

import numpy as np
import pytest

from nnmpi.run.checkpoints.values import as_json, from_json


@pytest.mark.parametrize(
    "value",
    [
        *(0.1 + 0.2, 5e-324, -0.0, float("inf"), float("-inf"), 10**30, True, None, "", "\udcff"),
        *((), (1, (2.0, "x")), [(), []], {"tuple": 1}, {"dict": {"numpy": 2}}, {"a": 1, "dict": 2}),
        *(np.float32(0.1), np.float64(0.1), np.int8(-3), np.bool_(True), np.float16("nan")),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    text = json.dumps(as_json(value, []), allow_nan=False)
    found = from_json(json.loads(text), (), "value")
    assert repr(found) == repr(value)
    assert type(found) is type(value)
