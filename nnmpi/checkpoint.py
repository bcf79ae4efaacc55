"""The command `python -m nnmpi.checkpoint`: lists, verifies and exports checkpoints."""

from nnmpi.addons.checkpoints.command import main as main
from nnmpi.addons.checkpoints.command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
