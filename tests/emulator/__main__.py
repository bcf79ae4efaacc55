"""Runs a command with the emulated device: each Python that it starts has CuPy on it.

    python -m emulator mpirun -n 2 python -m nnmpi.train --device cuda --data digits

The folder tests has to be on PYTHONPATH. Ranks of a node share the devices of NNMPI_EMULATOR,
which by default are so many that each rank of a test has its own.
"""

import os
import sys
from pathlib import Path

from emulator import load, machine

HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """The variables of a process that has the emulated device."""
    paths = (HERE / "site", HERE.parent, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(str(p) for p in paths if str(p))
    return {"NNMPI_EMULATOR": "devices=8", **os.environ, "PYTHONPATH": path}


if __name__ == "__main__":
    if reason := load.missing():
        sys.exit(f"emulator: {reason}")
    machine.library()  # built here, once
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
