"""The table of the commands of nnmpi."""

from typing import NamedTuple

from nnmpi.addons import ADD_ONS


class Command(NamedTuple):
    """An entry of the table: the module whose `parser()` has the options, and what the command
    does."""

    parser: str
    text: str


COMMANDS = {
    "train": Command("nnmpi.train", "train a model, under mpirun on many ranks"),
    **{name: Command(*entry) for a in ADD_ONS.values() for name, entry in a.commands.items()},
}
"""By name: `nnmpi NAME` and `python -m nnmpi.NAME` are the same command."""
