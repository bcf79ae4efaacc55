"""The command `python -m nnmpi.plan`: finds the fastest layout of N ranks for a model, without
MPI."""

from nnmpi.addons.planning.plan_command import main as main
from nnmpi.addons.planning.plan_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
