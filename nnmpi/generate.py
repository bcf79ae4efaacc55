"""The command `python -m nnmpi.generate`: generates text with a saved model, or with a GPT-2.

Run it, do not import it: an import would replace the function `nnmpi.generate`
(`nnmpi/addons/language/run/generation.py`) with this module.
"""

import sys

from nnmpi.addons.language.run.generate_command import main
from nnmpi.comm import ended

if __name__ != "__main__":
    raise ImportError(
        "nnmpi.generate is a function: write `from nnmpi import generate`, or start the command of "
        "that name by python -m nnmpi.generate"
    )

sys.exit(ended(main()))
