"""The command `python -m nnmpi.doctor`: checks the installation, and says how to fix a problem."""

from nnmpi.addons.doctor.command import main as main
from nnmpi.addons.doctor.command import parser as parser
from nnmpi.comm import ended

if __name__ == "__main__":
    raise SystemExit(ended(main()))
