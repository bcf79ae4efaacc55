"""What all commands of nnmpi do alike: errors of one line, and output that may be lost."""

import argparse
import os
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, but what it cannot use it tells its caller."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


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
