"""Shared by the commands of nnmpi: one-line errors, and a stdout that may be closed."""

import argparse
import os
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def fail(program: str, message: object, status: int) -> int:
    """Print the message as one line on stderr; returns the exit status."""
    print(f"{program}:", *str(message).splitlines(), file=sys.stderr)
    return status


def settle() -> None:
    """Discard output that a closed stdout refuses, else the interpreter reports it at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
