"""The command `python -m nnmpi.report`: writes an HTML page of runs, from their logs and traces."""

from nnmpi.addons.pages.report_command import main as main
from nnmpi.addons.pages.report_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
