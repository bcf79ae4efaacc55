"""The command `python -m nnmpi.generate`: text from a model that was saved, or from a GPT-2.

It is run, not imported: an import would put this module in the place of the function
`nnmpi.generate` (`nnmpi/run/text/generation.py`).
"""

import sys

from nnmpi.comm import ended
from nnmpi.run.text.generate_command import main

if __name__ != "__main__":
    raise ImportError(
        "nnmpi.generate is a function, by `from nnmpi import generate`; the command of that name "
        "is started by python -m nnmpi.generate"
    )

sys.exit(ended(main()))
