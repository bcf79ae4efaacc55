"""What commands refuse, from refusals.toml: by a name, the arguments and words of the answer."""

import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

LONG = "m" * 300
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TEXTS = {**TABLE["words"], "long": LONG, "shown": LONG[:99], "nines": "9" * 5000}


def refused(*commands: str) -> pytest.MarkDecorator:
    """The rows of these commands as the parameters `said` and `words` of a test."""
    rows = dict[str, tuple[str, list[str]]]()
    for command in commands:
        for name, row in TABLE[command.removesuffix(" --dry-run")].items():
            said, *words = (text.format(**TEXTS) for text in row)
            rows[f"{command}: {name}"] = (f"{command} {said}", words)
    return pytest.mark.parametrize(("said", "words"), rows.values(), ids=rows)


def check(
    main: Callable[[Sequence[str]], object],
    said: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Checks that a command answers what is said with one line that has these words."""
    name, *arguments = shlex.split(said)
    try:
        status: Any = main(arguments)
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"nnmpi\.{name}: .*\n", err), err
    assert [word for word in words if word not in err] == [], err
