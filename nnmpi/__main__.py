"""The command `nnmpi NAME ...`, the same as `python -m nnmpi.NAME ...`; imports only its module.

Exit status: that of the command, or 2 if no command has this name.
"""

import os
import runpy
import sys
from contextlib import suppress

from nnmpi.commands import COMMANDS
from nnmpi.options import cli
from nnmpi.options.quoting import nearest, quoted
from nnmpi.version import __version__


def main() -> int:
    """Runs the command that the first argument names, and returns its exit status."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-V", "--version"):
        return cli.run("nnmpi", lambda: _print(f"nnmpi {__version__}"))
    if name in ("-h", "--help", "help"):
        return cli.run("nnmpi", lambda: _print(_usage()))
    if name not in COMMANDS:
        problem = f"no command {quoted(name)}{nearest(name, COMMANDS)}" if name else "no command"
        return cli.fail("nnmpi", f"{problem}; nnmpi --help lists all", 2)
    del sys.argv[1]
    with suppress(FileNotFoundError):  # the current folder was removed
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()  # as `python -m` has it; a console script has bin/ there
    runpy.run_module(f"nnmpi.{name}", run_name="__main__", alter_sys=True)
    return 0


def _usage() -> str:
    rows = [f"  {name:12}{command.text}" for name, command in COMMANDS.items()]
    heads = ["usage: nnmpi [--version] COMMAND [OPTION ...]", ""]
    return "\n".join([*heads, *rows, "", "nnmpi COMMAND --help lists the options of a command."])


def _print(text: str) -> int:
    print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
