"""The table of the commands of nnmpi."""

from typing import NamedTuple

from nnmpi.addons import ADD_ONS


class Command(NamedTuple):
    """A command: the module whose `parser()` defines its options, and a short description."""

    parser: str
    text: str


COMMANDS = {
    "train": Command("nnmpi.train", "train a model, under mpirun on many ranks"),
    **{name: Command(*entry) for a in ADD_ONS.values() for name, entry in a.commands.items()},
}
"""The commands by name: `nnmpi NAME` and `python -m nnmpi.NAME` are the same."""
