"""A process for the adapters of all tests of a file, and a limit for ranks that wait."""

from collections.abc import Iterator

import pytest

from classroom.remote import StudentProcess


@pytest.fixture(scope="module")
def process() -> Iterator[StudentProcess]:
    """A process that runs the adapters of a file's tests, one after the other."""
    process = StudentProcess(8)
    yield process
    process.close()


@pytest.fixture(autouse=True)
def _no_rank_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "20")
