"""The command `python -m nnmpi.plan`: finds the layout of N ranks that trains a model fastest,
without MPI.
"""

from nnmpi.addons.planning.plan_command import main as main
from nnmpi.addons.planning.plan_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
