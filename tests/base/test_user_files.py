"""Files of users: pipes, and texts nested too deeply for the parsers of JSON and TOML."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
from helpers.datafiles import refused

from nnmpi.options.user_files import content, parsed


class Garbage:
    """Only the garbage collector finds it, and its finalizer calls functions."""

    def __init__(self, calls: int) -> None:
        self.itself, self.calls = self, calls

    def __del__(self) -> None:
        self._call(self.calls)

    def _call(self, more: int) -> None:
        if more:
            self._call(more - 1)


@pytest.fixture
def garbage() -> Iterator[None]:
    """So much that it is collected in the next hundreds of objects."""
    thresholds = gc.get_threshold()
    gc.collect()
    for _ in range(100):
        Garbage(200)
    gc.set_threshold(800)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


def test_a_text_is_read_and_errors_are_the_parser_s() -> None:
    assert parsed(json.loads, "[[1], 2]") == [[1], 2]
    with pytest.raises(json.JSONDecodeError):
        parsed(json.loads, "[1")
    assert gc.isenabled()


def test_a_pipe_is_read_while_another_process_writes_into_it() -> None:
    """As of `--config <(...)` in a shell, which is slower than the reader."""
    reader, writer = os.pipe()
    with os.fdopen(reader):
        late = Timer(0.2, lambda: (os.write(writer, b"lr = 1"), os.close(writer)))
        late.start()
        assert content(f"/dev/fd/{reader}", "the pipe", 100, "name a file") == b"lr = 1"
        late.join()


def test_a_pipe_that_nobody_writes_into_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("cannot read the pipe: a pipe that no process writes to; name a file"):
        content(tmp_path / "pipe", "the pipe", 100, "name a file")
