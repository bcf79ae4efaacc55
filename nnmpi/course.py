"""The command `nnmpi course`: hands out assignments, and grades them."""

from nnmpi.addons.course.command import main as main
from nnmpi.addons.course.command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
