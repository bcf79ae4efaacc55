"""What tests of the benchmarks share: where these lie, and how one is imported."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
Import = Callable[[str], ModuleType]
