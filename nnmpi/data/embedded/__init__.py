"""The two small data sets that come with the library; ORIGIN.md says where they are from.

Rows 0, 5, 10, ... are held out for testing, whatever the seed: so that accuracies
can be compared, and a lucky fifth cannot be looked for.
"""

from importlib.resources import files
from io import BytesIO

import numpy as np

from nnmpi.data.arrays import from_arrays
from nnmpi.data.dataset import Dataset, Request


def iris(request: Request) -> Dataset:
    """150 flowers of three species: four lengths in cm, 50 rows a species."""
    table = np.loadtxt(BytesIO(_content("iris.csv")), delimiter=",", skiprows=1)
    return _every_fifth_held_out("iris", table[:, :4], table[:, 4].astype("int64"))


def digits(request: Request) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels with values 0 to 16."""
    with np.load(BytesIO(_content("digits.npz")), allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"]
    return _every_fifth_held_out("digits", x[:, None], y)


def _every_fifth_held_out(name: str, x: np.ndarray, y: np.ndarray) -> Dataset:
    test = np.arange(len(y)) % 5 == 0
    made = from_arrays(x[~test], y[~test], x[test], y[test], name=name)
    return made._replace(note=f"every fifth row, {test.sum():,} in all, is held out for testing")


def _content(name: str) -> bytes:
    return (files(__name__) / name).read_bytes()
