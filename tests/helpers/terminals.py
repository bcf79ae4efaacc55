"""Terminals to start commands on."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time


def terminal() -> tuple[int, int]:
    """Our end and theirs of a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    return ours, theirs


def seen(terminal: int, timeout: float, until: bytes = b"$never") -> str:
    """What is written to a terminal until its last writer closes it, or a pattern is found."""
    text, end = b"", time.monotonic() + timeout
    while time.monotonic() < end:
        if re.search(until, text):
            return text.decode(errors="replace")
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the end of file on Linux
            piece = b""
        if not piece:
            return text.decode(errors="replace")
        text += piece
    raise AssertionError("timeout")
