"""The command `python -m nnmpi.plot`: loss and accuracy of runs, drawn from their logs.

It is run, not imported: an import would put this module in the place of the function `nnmpi.plot`
(`nnmpi/io/output/plot.py`).
"""

from nnmpi.io.output.plot import main

if __name__ != "__main__":
    raise ImportError("nnmpi.plot is a function, by `from nnmpi import plot`")

raise SystemExit(main())
