"""The command `python -m nnmpi.tokenize`, which writes the tokens of a text to a file.

The folder has no `__init__.py`, so that `import tokenize` finds the standard library's module even
if Python starts in `nnmpi/`.
"""

import sys

from nnmpi.addons.language.tokenize_command import main
from nnmpi.comm import ended

if __name__ == "__main__":
    sys.exit(ended(main()))
