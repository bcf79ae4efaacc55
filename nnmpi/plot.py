"""The command `python -m nnmpi.plot`: draws loss and accuracy of runs, from their logs.

Run it, do not import it: an import would replace the function `nnmpi.plot`
(`nnmpi/addons/pages/plot.py`) with this module.
"""

from nnmpi.addons.pages.plot import main

if __name__ != "__main__":
    raise ImportError("nnmpi.plot is a function, by `from nnmpi import plot`")

raise SystemExit(main())
