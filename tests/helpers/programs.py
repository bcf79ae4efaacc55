"""Runs short programs in a Python of their own."""

import subprocess
import sys


def printed(program: str) -> str:
    """What a program prints; it fails if the program does, whose errors are shown with the test."""
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    return run.stdout.strip()
