"""torchrun's command, with mpirun: python -m nnmpi.run --nproc-per-node 2 script.py --its-option

Starts the ranks by mpirun; each of them sets the variables of torchrun and runs the script, as
`mpirun -n 2 python -m nnmpi.run script.py` does. With `-m`, the script is the name of a module.
"""

import argparse
import os
import runpy
import shutil
import sys
from collections.abc import Sequence

from nnmpi.addons.torchlike.distributed import environment
from nnmpi.comm import has_launcher


def parser() -> argparse.ArgumentParser:
    """Returns a parser of the options in front of the script."""
    options = argparse.ArgumentParser(prog="python -m nnmpi.run", description=__doc__)
    options.add_argument(
        "--nproc-per-node", "--nproc_per_node", type=int, default=1, help="ranks on this host"
    )
    options.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    options.add_argument("script")
    options.add_argument("arguments", nargs=argparse.REMAINDER)
    return options


def command(given: argparse.Namespace) -> list[str]:
    """Returns the mpirun command that starts the ranks."""
    beside = shutil.which("mpirun", path=os.path.dirname(sys.executable))
    launcher = beside or shutil.which("mpirun") or shutil.which("mpiexec")
    if launcher is None:
        sys.exit(
            "python -m nnmpi.run: there is no mpirun: install an MPI library, or pip install "
            "'nnmpi[mpi]'"
        )
    module = ["-m"] if given.module else []
    ranked = [launcher, "-n", str(given.nproc_per_node), sys.executable, "-m", "nnmpi.run"]
    return [*ranked, *module, given.script, *given.arguments]


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the ranks or, if this process is one of them, runs the script."""
    given = parser().parse_args(arguments)
    if not has_launcher():
        ranked = command(given)
        os.execv(ranked[0], ranked)
    environment.set_variables()
    sys.argv = [given.script, *given.arguments]
    if given.module:
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(given.script))
        runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
