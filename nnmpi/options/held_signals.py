"""Hold SIGUSR1 back while the command `nnmpi.train` is imported; the command then handles it.

It would end a process that has no handler yet, and the imports take a second on a busy machine.
"""

import signal
import sys

called = [word.rpartition("/")[2] for word in sys.orig_argv[-len(sys.argv) :][:2]]
"""The name of the command: ["nnmpi.train", ...] of `python -m`, else ["nnmpi", "train"]."""

if called[:1] == ["nnmpi.train"] or called == ["nnmpi", "train"]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
