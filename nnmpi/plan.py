"""The command `python -m nnmpi.plan`: finds a model's fastest layout on N ranks."""

from nnmpi.addons.planning.plan_command import main as main
from nnmpi.addons.planning.plan_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
