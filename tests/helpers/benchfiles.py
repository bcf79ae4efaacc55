"""Shared by the tests of benchmarks: their folder, the importing fixture, and refusals."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
Import = Callable[[str], ModuleType]
