"""Runs short programs in a Python of their own."""

import os
import sys
from pathlib import Path

from helpers.mpijob import Ended, environment, outcome_of


def printed(program: str, *arguments: str) -> str:
    """What a program prints, which has to end well."""
    done = python("-c", program, *arguments)
    assert done.status == 0, done.err
    return done.out.strip()


def python(
    *arguments: str | os.PathLike[str],
    folder: Path | None = None,
    timeout: float = 200,
    **added: str,
) -> Ended:
    """How `python *arguments` ended, with variables added to the environment."""
    return outcome_of([sys.executable, *arguments], environment(added), timeout, folder)
