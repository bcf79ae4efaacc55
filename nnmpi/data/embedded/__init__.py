"""The two small data sets that come with the library; ORIGIN.md says where they are from."""

from importlib.resources import files
from io import BytesIO

import numpy as np

from nnmpi.data.arrays import from_arrays
from nnmpi.data.dataset import Dataset, Request


def iris(request: Request) -> Dataset:
    """150 flowers of three species: four lengths in cm, 50 rows a species."""
    table = np.loadtxt(BytesIO(_content("iris.csv")), delimiter=",", skiprows=1)
    return from_arrays(table[:, :4], table[:, 4].astype("int64"), seed=request.seed, name="iris")


def digits(request: Request) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels with values 0 to 16."""
    with np.load(BytesIO(_content("digits.npz")), allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"]
    return from_arrays(x[:, None], y, seed=request.seed, name="digits")


def _content(name: str) -> bytes:
    return (files(__name__) / name).read_bytes()
