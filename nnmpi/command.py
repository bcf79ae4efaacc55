"""What all commands of nnmpi do alike: errors of one line, and output that may be lost."""

import argparse
import os
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse with the house's errors: one line on stderr, exit status 2."""

    def error(self, message: str) -> NoReturn:
        program = self.prog.split()[2]  # "python -m nnmpi.train", perhaps with a subcommand behind
        raise SystemExit(fail(program, message, 2))


def fail(program: str, message: object, status: int) -> int:
    """One line on stderr, whatever is in the message, and the exit status."""
    print(f"{program}:", *str(message).splitlines(), file=sys.stderr)
    return status


def settle() -> None:
    """Drop what a lost stdout did not take, or the interpreter tries again, and complains."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
