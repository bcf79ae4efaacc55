"""`simulate layout --list` prints the list of each kind of rank, or says why there is none."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from nnmpi import simulate


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    status = simulate.main(["layout", "--data", "digits", "--list", *options])
    out, err = capsys.readouterr()
    return status, out, err


LISTS = tomllib.loads(Path(__file__).with_name("printed_lists.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("options", LISTS)
def test_the_lists_that_are_printed(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = printed(capsys, *options.split())
    assert status == 0, err
    assert out.endswith(LISTS[options])


STRATEGIES = "--schedule pipedream --pp 2 --cut 3", "--sync asp", "--reproducible"


@pytest.mark.parametrize("options", STRATEGIES)
def test_the_lists_of_all_strategies_are_drawn(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--ranks", "2", "--model", "mlp:64-32-10", *options.split()
    status, _, err = printed(capsys, *words, "--svg", str(tmp_path / "step.svg"))
    assert status == 0, err
    assert "computes" in (tmp_path / "step.svg").read_text()


OTHERS = "--sync gossip", "--verify"


@pytest.mark.parametrize("options", OTHERS)
def test_steps_that_are_not_one_list_are_refused(
    capsys: pytest.CaptureFixture[str], options: str
) -> None:
    status, _, err = printed(capsys, "--ranks", "2", "--model", "mlp:64-32-10", *options.split())
    assert status == 2
    assert "--list: a step with" in err
