"""The lists of stages that a test makes."""

from collections.abc import Callable
from typing import Any

import pytest

from nnmpi.parallel.step import stage_lists
from nnmpi.parallel.step.stage_lists import ReplayedStages, StageLists


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedStages]:
    """The replayed stages of all ranks of the test."""
    stages = list[ReplayedStages]()

    def noted(*args: Any) -> ReplayedStages:
        stages.append(ReplayedStages(*args))
        return stages[-1]

    monkeypatch.setattr(stage_lists, "ReplayedStages", noted)
    return stages


@pytest.fixture
def stages(made: list[ReplayedStages]) -> Callable[[], list[StageLists]]:
    """A function that returns the lists of all stages of the test."""
    return lambda: [lists for stage in made for lists in stage.lists.values()]
