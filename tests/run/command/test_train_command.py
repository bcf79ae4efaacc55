"""The command: unusable arguments."""

from pathlib import Path

import pytest
from helpers.commands import IRIS, Command


def test_a_model_too_large_for_memory_is_drawn_on_paper_alone(command: Command) -> None:
    model = "--model", "mlp:64-4000000-4000000", "--data", "digits"
    completed = command(*model)
    assert (completed.status, completed.out) == (2, "")
    assert completed.err.startswith("nnmpi.train: out of memory: ")
    assert completed.err.endswith("; take a smaller model or less data\n")
    drawn = command(*model, "--dry-run")
    assert drawn.status == 0, drawn.err
    assert drawn.events[0]["kinds"][0]["parameters_bytes"] == 64_001_056_000_000
    larger = command("--model", "mlp:64-10000000-10000000", "--data", "digits", "--dry-run")
    assert (larger.status, larger.out) == (2, "")
    assert "(10000000, 10000000) and type float32 has 400,000,000,000,000 bytes, more" in larger.err


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("NNMPI_TIMEOUT", "abc", "seconds above 0 or not at all"),
        ("NNMPI_TIMEOUT", "nan", "seconds above 0 or not at all"),
        ("NNMPI_DEBUG", "1", "'collectives' or not at all"),
        ("NNMPI_TUNE", "no", "0, 1 or not at all"),
        (
            "NNMPI_NATIVE",
            "sse",
            "0, 1 or one of amx, avx512bf16, avx512, avx2, baseline, or not at all",
        ),
    ],
)
def test_an_unusable_environment_is_a_one_line_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, value: str, remedy: str
) -> None:
    monkeypatch.setenv(name, value)
    line = f"nnmpi.train: {name} is {value!r}: set it to {remedy}\n"
    assert command(*IRIS, "--steps", "1") == (2, "", line)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_log_that_has_a_run_is_refused_before_training(
    command: Command, more: tuple[str, ...]
) -> None:
    assert command(*IRIS, "--steps", "1", "--log", "log").status == 0
    before = Path("log").read_text()
    completed = command(*IRIS, "--steps", "1", "--log", "log", "--save", "m.safetensors", *more)
    line = (
        "nnmpi.train: cannot write log log: it has a run already; name another file, or add to "
        "this one with --append\n"
    )
    assert completed == (2, "", line)
    assert Path("log").read_text() == before
    assert command(*IRIS, "--steps", "1", "--log", "log", "--append", *more).status == 0
    assert Path("log").read_text().startswith(before)
