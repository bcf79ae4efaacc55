"""Draw loss and accuracy of one or several runs: python scripts/draw_log.py run.jsonl -o run.png.

It needs matplotlib: pip install 'nnmpi[plot]'. In Python: nnmpi.plot(["a.jsonl", "b.jsonl"]).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nnmpi
from nnmpi import cli


def main(arguments: Sequence[str]) -> int:
    """Draw, and return the exit status: 2 for unusable arguments."""
    parser = cli.Parser(prog="draw_log.py", description="Draw loss and accuracy of runs.")
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a file that --log has written")
    parser.add_argument("--x", default="epochs", help="epochs, steps or seconds (default epochs)")
    parser.add_argument("-o", "--out", default="training.png", help="a .png, .svg or .pdf file")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also the learning rate, the norm of the gradient, and samples or tokens a second",
    )
    try:
        a = parser.parse_args(arguments)
        nnmpi.plot(a.logs, x=a.x, out=a.out, everything=a.all)
    except ValueError as error:
        return cli.fail("draw_log.py", error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
