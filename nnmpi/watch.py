"""The command `python -m nnmpi.watch`: serves the page of runs, and follows their logs."""

from nnmpi.addons.pages.watch_command import main as main
from nnmpi.addons.pages.watch_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
