"""Files of users: pipes, and texts nested too deeply for the parsers of JSON and TOML."""

import json
import os
from threading import Timer

import pytest

from nnmpi.user_files import content, parsed


def test_a_text_is_read_and_errors_are_the_parser_s() -> None:
    assert parsed(json.loads, "[[1], 2]") == [[1], 2]
    with pytest.raises(json.JSONDecodeError):
        parsed(json.loads, "[1")
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed(json.loads, "[" * 100_000)


def test_a_pipe_is_read_while_another_process_writes_into_it() -> None:
    """As of `--config <(...)` in a shell, which is slower than the reader."""
    reader, writer = os.pipe()
    with os.fdopen(reader):
        late = Timer(0.2, lambda: (os.write(writer, b"lr = 1"), os.close(writer)))
        late.start()
        assert content(f"/dev/fd/{reader}", "the pipe", 100, "name a file") == b"lr = 1"
        late.join()
