"""The command `python -m nnmpi.measure`: measures how fast a machine computes a model's layers and
sums gradients, for nnmpi.plan."""

import sys

from nnmpi.addons.planning.measure_command import main as main
from nnmpi.addons.planning.measure_command import parser as parser
from nnmpi.comm import ended

if __name__ == "__main__":
    sys.exit(ended(main()))
