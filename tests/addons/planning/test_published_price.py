"""The price of a published layout: GPT of 70B on 768 H100, interleaved (Megatron-Core, 2024)."""

import importlib.util
from types import ModuleType

import pytest
from helpers.benchfiles import BENCHMARKS


def published() -> ModuleType:
    """The module that prices the tables of benchmarks/published."""
    spec = importlib.util.spec_from_file_location("published", BENCHMARKS / "lib" / "published.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_price_of_an_interleaved_step_of_70b_is_near_its_published_seconds() -> None:
    """With sums behind the passes of one micro-batch alone, it would be 1.096 of them."""
    tables = published()
    table = tables.read_table("megatron-core-2024")
    (step,) = (s for s in table.steps if s.options["ranks"] == 768 and s.options["known"])
    assert step.options["virtual"] > 1
    seconds = tables.price(tables.on_a_machine(step, table), table.sheet).seconds
    assert seconds / step.seconds == pytest.approx(1.031, abs=0.005)
