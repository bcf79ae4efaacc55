"""The lists of stages that a test makes."""

from typing import Any

import pytest

from nnmpi.parallel.step import replayed_stages
from nnmpi.parallel.step.replayed_stages import ReplayedStages


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedStages]:
    """The replayed stages of all ranks of the test."""
    stages = list[ReplayedStages]()

    def noted(*args: Any) -> ReplayedStages:
        stages.append(ReplayedStages(*args))
        return stages[-1]

    monkeypatch.setattr(replayed_stages, "ReplayedStages", noted)
    return stages
