"""PyTorch as an oracle for what an op must give, where it is installed.

    @needs_torch
    def test_...():
        torch = pytorch()

The other tests of a file run without it.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

MISSING = "PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason=MISSING)


def pytorch() -> ModuleType:
    """PyTorch, imported by the first test that needs it."""
    return import_module("torch")
