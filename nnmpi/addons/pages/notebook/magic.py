"""`%%ranks 4`: runs a cell on 4 processes that mpirun starts, in which `comm` is the Comm of all
four. Variables of other cells are not defined there. The output of each rank is printed after its
number, and if one fails, its traceback is printed once."""

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nnmpi.comm import world
from nnmpi.options.quoting import shown

CELL = "cell.py"
RANK = "import sys; from nnmpi.addons.pages.notebook.magic import run_cell; run_cell(sys.argv[1])"
OVERSUBSCRIBED = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""Tells Open MPI 5 and 4 to start more ranks than cores; other libraries do so anyway."""


class RanksError(Exception):
    """An error that IPython shows in one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def ranks(line: str, cell: str) -> None:
    """Runs a cell under mpirun on as many processes as `line` says; prints their output."""
    words = line.split()
    if len(words) != 1 or not words[0].isdecimal() or not int(words[0]):
        raise RanksError(f"%%ranks {shown(line)}: write a number of ranks, as %%ranks 4")
    beside = Path(sys.executable).parent
    mpirun = shutil.which("mpirun", path=f"{beside}:{os.environ.get('PATH', os.defpath)}")
    if mpirun is None:
        raise RanksError("%%ranks: there is no mpirun; pip install 'nnmpi[mpi]'")
    with TemporaryDirectory() as folder:
        Path(folder, CELL).write_text(cell, encoding="utf-8")
        command = [mpirun, "-n", words[0], sys.executable, "-c", RANK, folder]
        env = OVERSUBSCRIBED | {k: v for k, v in os.environ.items() if k[:5] != "PMIX_"}
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "env": env}
        ended = subprocess.run(command, check=False, text=True, errors="replace", **how)
        for rank in range(int(words[0])):
            file = Path(folder, str(rank))
            for said in file.read_text(errors="replace").splitlines() if file.exists() else ():
                print(f"rank {rank} | {said}")
    print(ended.stdout, end="")
    print(ended.stderr, end="", file=sys.stderr)
    if ended.returncode:
        raise RanksError(f"%%ranks: the job has failed with status {ended.returncode}")


def run_cell(folder: str) -> None:
    """Runs, in a process of mpirun, the cell in a folder, and writes its output there."""
    comm = world()
    path = Path(folder, CELL)
    names: dict[str, Any] = {"__name__": "__main__", "comm": comm}
    sys.stdin = StringIO()  # a rank that reads it would wait for ever
    with Path(folder, str(comm.rank)).open("w", buffering=1) as file, redirect_stdout(file):
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
