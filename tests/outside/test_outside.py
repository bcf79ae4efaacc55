"""A sample of PyTorch's own databases of operators, modules and optimizers."""

from importlib.util import find_spec
from typing import Any

import pytest

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
    assert sum(n.agree for n in report.counts.values()) >= at_least


def test_operators() -> None:
    import operators

    all_agree(operators.run(limit=4), at_least=600)


def test_modules() -> None:
    import modules

    all_agree(modules.modules(), at_least=180)


def test_optimizers() -> None:
    import modules

    all_agree(modules.optimizers(), at_least=20)
