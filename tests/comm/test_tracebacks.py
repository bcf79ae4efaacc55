"""Tracebacks of a rank that an exception ends: frames of the user, or all of them."""

from typing import Any

import numpy as np
import pytest

from nnmpi import Config, nn
from nnmpi.comm import traceback_text


class Wrong(nn.Module):
    def forward(self, x: Any) -> Any:
        try:
            return x + self.missing
        except AttributeError as error:
            raise RuntimeError("not like this") from error


@pytest.mark.parametrize("full", [False, True])
def test_a_traceback_has_the_frames_of_the_user(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNMPI_TRACEBACK", "full" if full else "")
    with pytest.raises(RuntimeError) as caught:
        np.errstate()(Wrong())(1)  # NumPy's frame is between those of nnmpi when it trains
    text = traceback_text(caught.value)
    assert text.endswith("\nRuntimeError: not like this\n")
    assert "has no attribute 'missing'\n\nThe above exception was the direct cause" in text
    assert text.count("return x + self.missing") == text.count("Wrong())(1)") == 1
    assert ("return func(*args" in text) == full
    assert ("module.py" in text, "NNMPI_TRACEBACK=full shows them" in text) == (full, not full)


def test_a_traceback_of_nnmpi_alone_is_whole() -> None:
    with pytest.raises(ValueError, match="lr") as caught:
        Config(lr=-1)
    trace = caught.tb
    while trace.tb_next and "config.py" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    text = traceback_text(caught.value.with_traceback(trace))
    assert text.startswith("Traceback")
    assert "config.py" in text


@pytest.mark.parametrize("text", ["MPI_ERR_TRUNCATE: message truncated", "Message truncated"])
def test_a_truncated_message_names_the_check_of_collectives(text: str) -> None:
    assert "NNMPI_DEBUG=collectives" in traceback_text(RuntimeError(text))
    assert "NNMPI_DEBUG" not in traceback_text(RuntimeError("another"))
