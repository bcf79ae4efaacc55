"""Every option with values that no option can have: one short line that names it, and status 2."""

from pathlib import Path

import pytest
from helpers.commands import Command

from nnmpi.comm.stderr import print_error
from nnmpi.io.output.messages import as_text
from nnmpi.options.cli import from_toml
from nnmpi.options.config import options

HOSTILE = {
    "NUL": "a\0b",
    "digits": "9" * 5000,
    "negative digits": "-" + "9" * 5000,
    "escape codes": "none\x1b[31m/\x07x",
    "lines": "none\n/a\rb",
    "no text": "none/\ud800x",
    "directions": "none/\u202e\u2028x",
    "empty": "",
    "long": "none/" + "m" * 5000,
    "widths": "mlp:" + "9-" * 3000 + "9",
    "terms": "warmup:1+" * 3000,
}
NUMBERS = {
    "hexadecimal": "0x" + "f" * 5000,
    "decimal": "9" * 5000,
    "list": "[1, [2, 3]]",
    "nested": "[" * 5000,
    "table": "{a.b.c = 1}",
    "date": "1979-05-27",
}
# what is named instead; Python's own limit is for integers of more than 4,300 digits
ELSE = (
    *("synthetic:", "a is not an option", "nested too deeply", "is not TOML"),
    "Exceeds the limit (4300 digits)",
)
IGNORED = ("data_dir",)  # by data sets that are in the package


def toml(text: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"'


def check(command: Command, name: str, arguments: list[str], words: tuple[str, ...]) -> None:
    usual = {"--model": "iris-mlp", "--data": "iris", "--steps": "1"}
    flags = [f"{flag}={value}" for flag, value in usual.items() if flag != f"--{name}"]
    completed = command(*flags, *arguments)
    assert completed.status == 2
    check_line(completed.err.removeprefix("nnmpi.train: ").removesuffix("\n"), words)


def check_line(line: str, words: tuple[str, ...]) -> None:
    assert line.isprintable()
    assert len(line) < 1200
    assert any(word in line for word in words), line


NAMES = [o.name for o in options() if o.name not in IGNORED]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_value_is_one_short_line(command: Command, name: str, is_sample: bool) -> None:
    """Each flag takes a third of the values, other ones than the next flag; all with --all."""
    flag = name.replace("_", "-")
    words = (name, flag, *ELSE)
    for value in [*HOSTILE.values()][NAMES.index(name) % 6 :: 6] if is_sample else HOSTILE.values():
        check(command, name, [f"--{flag}={value}"], words)
    for text in (*map(toml, HOSTILE.values()), *NUMBERS.values()):
        Path("h.toml").write_text(f"{name} = {text}")
        try:
            from_toml("h.toml")  # what is text and no more is refused later, as above
        except ValueError as error:
            check_line(str(error), words)


def test_no_control_characters_reach_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert as_text({"event": "note", "file": "a\x1b[31m"}) == r"file a\x1b[31m"
    print_error("rank 1: a\x1b[31m\nrank 2")
    assert capfd.readouterr().err == "rank 1: a\\x1b[31m\nrank 2\n"


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_config_is_one_short_line(command: Command, value: str) -> None:
    check(command, "config", [f"--config={value}"], ("config",))
    Path("h.toml").write_text(f"{toml(value)} = 1")
    check(command, "", ["--config=h.toml"], ("h.toml",))
