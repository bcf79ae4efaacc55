"""Blocks SIGUSR1 while the command `nnmpi.train` is imported; the command handles it afterwards.

The signal would end a process that has no handler yet, and the imports can take a second.
"""

import signal
import sys

called = [word.rpartition("/")[2] for word in sys.orig_argv[-len(sys.argv) :][:2]]
"""The command's name: ["nnmpi.train", ...] with `python -m`, otherwise ["nnmpi", "train"]."""

if called[:1] == ["nnmpi.train"] or called == ["nnmpi", "train"]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
