"""PyTorch's own databases of operators and modules: a sample, or all with --all."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest

import nnmpi.nn.functional as F

MISSING = [name for name in ("torch", "expecttest") if find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"{', '.join(MISSING)} not installed: NNMPI_WITH_TORCH=1 scripts/test does so",
    ),
    # importing these internals of PyTorch warns, and samples divide by zero
    pytest.mark.filterwarnings("ignore"),
]


def all_agree(report: Any, at_least: int) -> None:
    """No sample differs, and so many agree: the others ask for what is not supported."""
    assert not report.differences, "\n".join(report.differences)
    assert sum(report.agreeing.values()) >= at_least


def test_operators(is_sample: bool) -> None:
    """In a thread: each seed that PyTorch sets formats the stack, which pytest makes deep."""
    import operators

    with ThreadPoolExecutor() as pool:
        report = pool.submit(operators.run, 1 if is_sample else None).result()
    all_agree(report, at_least=300 if is_sample else 9500)
    made_of_others = {"sigmoid", "tanh", "softmax", "log_softmax", "dropout", "one_hot"}
    public = {name for name, f in vars(F).items() if getattr(f, "__module__", "") == F.__name__}
    public = {name for name in public if name.islower() and name[0] != "_"} - made_of_others
    assert public <= {name.removeprefix("nn.functional.") for name in report.agreeing}


def test_modules(is_sample: bool) -> None:
    import modules

    report = modules.modules(every=12 if is_sample else 1)
    all_agree(report, at_least=75 if is_sample else 850)
