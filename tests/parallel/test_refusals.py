"""Features that cannot be combined: every pair is refused, and `--combinations` prints them all."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.options import another

from nnmpi import Config, train
from nnmpi.options.config import options
from nnmpi.options.features import Refusal, Requires
from nnmpi.parallel import strategies
from nnmpi.parallel.refusals import FEATURES, REFUSALS, REQUIREMENTS

TABLE = tomllib.loads(Path(__file__).with_name("asked.toml").read_text(encoding="utf-8"))
ASKED: dict[str, dict[str, Any]] = {o.name: {o.name: another(o)} for o in options()}
ASKED |= TABLE["asked"]


def asked(*names: str) -> Config:
    """A config that asks for these features; of two values of one option, the latter."""
    return Config(**{key: value for name in names for key, value in ASKED[name].items()})


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.feature.name}-{row.beside.name}")
def test_what_cannot_be_combined_is_refused(row: Refusal) -> None:
    config, ranks = asked(row.feature.name, row.beside.name), 1 + (row.beside.name != "one rank")
    pairs = [
        (pair.reason, pair.remedy)
        for pair in REFUSALS
        if pair.feature.asked(config, ranks) and pair.beside.asked(config, ranks)
    ]
    assert (row.reason, row.remedy) in pairs
    reason, remedy = pairs[0]  # options of the row may also ask for another pair
    with refused(reason, remedy):
        strategies.check(config, ranks)
    alone = {**ASKED[row.feature.name], **TABLE["alone"].get(row.feature.name, {})}
    strategies.check(Config(**alone), 2)


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: row.feature.name)
def test_what_needs_another_option_is_refused_without_it(row: Requires) -> None:
    name, flag = row.feature.name, row.other.replace("_", "-")
    with refused(name, f"without {row.other}", row.reason, f"add --{flag}"):
        strategies.check(asked(name), 2)


def test_the_command_prints_what_is_refused_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(["--combinations"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    needed, pairs, required = printed_tables(printed)
    by_property = {
        (relying, beside, f"it needs {words}, and {reason}")
        for words, relies, breaks in needed
        for relying in re.findall("`(.*?)`", relies)
        for beside, reason in re.findall("`(.*?)`: (.*?)(?:; (?=`)|$)", breaks)
        if beside != relying
    }
    other = {(name.strip("`"), beside.strip("`"), reason) for name, beside, reason in pairs}
    refused_pairs = {(row.feature.name, row.beside.name, row.reason) for row in REFUSALS}
    assert other <= refused_pairs <= other | by_property
    both = {(name, beside) for name, beside, _ in other | by_property}
    assert both == {(name, beside) for name, beside, _ in refused_pairs}
    of_others = {(f.name, other, reason) for f, other, reason in REQUIREMENTS}
    assert {(a.strip("`"), b.strip("`"), reason) for a, b, reason in required} == of_others


def test_the_command_says_which_options_a_name_stands_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        train.main(["--combinations"])
    printed = capsys.readouterr().out
    names = {option.name for option in options()}
    assert not [f.name for f in FEATURES if f.name.split()[0] not in names and not f.covers]
    assert all(f"- `{f.name}`: {f.covers}\n" in printed for f in FEATURES if f.covers)


def printed_tables(text: str) -> Iterator[list[tuple[str, ...]]]:
    """The rows of each table of a page, by cells."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        yield [tuple(row[2:-2].split(" | ")) for row in table.splitlines()[2:]]


def test_what_belongs_together_is_accepted() -> None:
    strategies.check(Config(pp=2, virtual_stages=3, schedule="interleaved", cut="1,2,3,4,5"), 2)
    strategies.check(Config(recompute=True, schedule="gpipe"), 2)
