"""Sizes as texts: one parser for the options of all commands."""

import pytest

from nnmpi.addons.planning import plan_command as plan
from nnmpi.addons.simulator import command as simulate
from nnmpi.options import value_forms
from nnmpi.options.config import Config

SIZES = {
    "100e6": 1e8,
    "8": 8,
    "12B": 12,
    "64 kb": 64_000,
    "100KB": 100_000,
    "64KiB": 65_536,
    "1.5GB": 1.5e9,
    "8G": 8e9,
    "2Gi": 2 * 2**30,
    "1e3kB": 1e6,
    "2TiB": 2 * 2**40,
    "0": 0,
}


@pytest.mark.parametrize("text", SIZES)
def test_each_command_takes_each_form(text: str) -> None:
    assert value_forms.size(text) == SIZES[text]
    assert Config(memory=text).memory == text
    assert plan.parser().parse_args(["--ranks=2", f"--memory={text}"]).memory == SIZES[text]
    of_buffer = ["collective", "--ranks=2", f"--bytes={text}"]
    assert simulate.parser().parse_args(of_buffer).bytes == SIZES[text]


@pytest.mark.parametrize(
    "text", ["", "eight", "8MBs", "-1", "nan", "inf", "1e999", "1e300TB", "5iB"]
)
def test_other_texts_are_refused_alike(text: str) -> None:
    for parse in (
        value_forms.size,
        lambda text: plan.parser().parse_args(["--ranks=2", f"--memory={text}"]),
        lambda text: simulate.parser().parse_args(["collective", "--ranks=2", f"--bytes={text}"]),
    ):
        with pytest.raises(ValueError, match="is not a size: give bytes, or a number with kB, MB"):
            parse(text)


def test_an_option_of_a_run_names_itself() -> None:
    with pytest.raises(ValueError, match="memory '8GBs' is not a size"):
        Config(memory="8GBs")
