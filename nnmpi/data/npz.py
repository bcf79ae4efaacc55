"""Data sets from a NumPy archive, FILE.npz."""

import os
import zlib
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from nnmpi.data.arrays import from_arrays
from nnmpi.data.dataset import Dataset, Request

KEYS = ("x", "y", "x_test", "y_test")


def npz(request: Request) -> Dataset:
    """The arrays x and y of a file, and x_test and y_test if it has them.

    Nothing is unpickled, so a file of unknown origin can do no harm.
    """
    path = Path(os.path.expanduser(request.argument))
    arrays = _read(path)
    missing = [key for key in KEYS[:2] if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no array {' and no '.join(missing)}; save it with "
            "numpy.savez(file, x=..., y=...), and x_test=..., y_test=... if there are test data"
        )
    x, y, x_test, y_test = (arrays.get(key) for key in KEYS)
    return from_arrays(x, y, x_test, y_test, request.seed, path.name)


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file that have one of our names."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the path of an .npz file to --data")
    try:
        if not is_zipfile(path):
            raise ValueError(f"its {path.stat().st_size:,} bytes are not a zip archive")
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in KEYS if key in archive.files}
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        if "allow_pickle" in reason:
            reason = "an array in it holds Python objects"
        raise ValueError(
            f"{path} cannot be read as an .npz file: {reason}; write it again with "
            "numpy.savez(file, x=..., y=...), plain numbers only"
        ) from error
