"""The command `python -m nnmpi.simulate`, which predicts and draws costs without MPI."""

from nnmpi.addons.simulator.command import main as main
from nnmpi.addons.simulator.command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
