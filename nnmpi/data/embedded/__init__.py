"""The two small data sets that come with the library; ORIGIN.md gives their sources.

Rows 0, 5, 10, ... are held out for testing, whatever the seed, so that accuracies can be compared.
"""

from importlib.resources import files
from io import BytesIO

import numpy as np

from nnmpi.data.dataset import Dataset, DatasetRequest, from_arrays


def iris(request: DatasetRequest) -> Dataset:
    """Loads iris: 50 flowers of each of three species, with four lengths in cm."""
    table = np.loadtxt(BytesIO(_content("iris.csv")), delimiter=",", skiprows=1)
    return _hold_out_every_fifth("iris", table[:, :4], table[:, 4].astype("int64"))


def digits(request: DatasetRequest) -> Dataset:
    """Loads digits: 1,797 handwritten digits of 8 x 8 pixels with values 0 to 16."""
    with np.load(BytesIO(_content("digits.npz")), allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"]
    return _hold_out_every_fifth("digits", x[:, None], y)


def _hold_out_every_fifth(name: str, x: np.ndarray, y: np.ndarray) -> Dataset:
    test = np.arange(len(y)) % 5 == 0
    dataset = from_arrays(x[~test], y[~test], x[test], y[test], name=name)
    return dataset._replace(note=f"every fifth row, {test.sum():,} in all, is held out for testing")


def _content(name: str) -> bytes:
    return (files(__name__) / name).read_bytes()
