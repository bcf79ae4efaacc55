"""Files of tokens, which python -m nnmpi.tokenize writes: they stay on disk while they are trained.

header, tokens   a NumPy array in one dimension, as numpy.save writes it
a line of JSON   behind it, where NumPy does not look: what the tokens are
"""

import os
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from nnmpi.data.dataset import Dataset, DatasetRequest
from nnmpi.data.files import RefusedError, reading
from nnmpi.data.windows import About, in_windows
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular

REMEDY = "write it again with python -m nnmpi.tokenize TEXT --out FILE.npy"
LONGEST = 64 << 20  # bytes of the line: a vocabulary of characters may be in it


def tokens(request: DatasetRequest) -> Dataset:
    """The tokens of a file in windows one behind the other; the last tenth is held out."""
    path = Path(os.path.expanduser(request.argument))
    with reading(path, REMEDY):
        check_regular(path)
        found, about = stored(path)
    return in_windows(shown(f"tokens:{path.name}"), found, request.context, about)


def stored(path: Path) -> tuple[np.ndarray, About]:
    """The tokens of a file, which is mapped into memory, and what they are."""
    found = npy.open_memmap(path, "r")
    if found.dtype.kind != "u" or found.ndim != 1:
        raise RefusedError(
            f"{shown(path)} holds {found.dtype} of shape {found.shape}, and tokens are unsigned "
            f"integers in one dimension; {REMEDY}"
        )
    with path.open("rb") as file:
        file.seek(found.offset + found.nbytes)
        return found, About.read(file.read(LONGEST))
