"""`nnmpi NAME` is `python -m nnmpi.NAME`; wrong names."""

import pytest
from helpers.commands import Command

import nnmpi
from nnmpi.commands import COMMANDS


def test_the_version_and_the_list_of_commands(here: Command) -> None:
    assert here("--version") == (0, f"nnmpi {nnmpi.__version__}\n", "")
    listed = here("--help")
    assert (listed.status, listed.err) == (0, "")
    assert all(f"  {name} " in listed.out for name in COMMANDS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian", "nnmpi: no command 'trian'; did you mean train?; nnmpi --help lists all"),
        ("xyz", "nnmpi: no command 'xyz'; nnmpi --help lists all"),
        ("a\x1bb", "nnmpi: no command 'a\\x1bb'; nnmpi --help lists all"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest_one(
    name: str, words: str, here: Command
) -> None:
    assert here(name) == (2, "", f"{words}\n")
    assert here().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_own_help(name: str, here: Command) -> None:
    run = here(name, "--help")
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(f"usage: nnmpi {name} ")
