"""Synthetic data: one random prototype per class, plus noise."""

import math
import re

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.data.dataset import Dataset, DatasetRequest, DatasetSize, Split
from nnmpi.data.files import check_room
from nnmpi.options.quoting import shown

FORM = "synthetic:SHAPE:CLASSES:SAMPLES"
EXAMPLE = "synthetic:1x28x28:10:12800 or synthetic:784:10:1000"
AMPLITUDE = 2.0  # noise is uniform in (-2, 2); prototypes have standard deviation 1


def synthetic(request: DatasetRequest) -> Dataset:
    """Makes random samples as `synthetic:SHAPE:CLASSES:SAMPLES` asks for (`request.argument` has
    the last three): SAMPLES for training, and a fifth as many (at least one) for testing.

    Sample i belongs to class i mod CLASSES. It depends only on the seed, the shape and i, so sample
    i is the same whatever the number of samples.
    """
    shape, classes, samples, tests, _ = size_of(request.argument)
    total = samples + tests
    sides = "x".join(map(str, (total, *shape)))
    count = 4 * total * math.prod(shape)
    check_room(f"synthetic:{request.argument}", f"an array of {sides} has", count)
    x = _draw(math.prod(shape), classes, total, request.seed).reshape(total, *shape)
    y = np.arange(total) % classes
    train, test = Split(x[:samples], y[:samples]), Split(x[samples:], y[samples:])
    return Dataset(f"synthetic:{request.argument}", train, test, classes, "")


def size_of(argument: str) -> DatasetSize:
    """The size that an argument such as `1x28x28:10:12800` (shape, classes, samples) asks for."""
    number = r"0{0,17}[1-9]\d{0,17}"
    form = re.fullmatch(r"(N|NxNxN):(N):(N)".replace("N", number), argument, re.ASCII)
    if form is None:
        raise ValueError(
            f"synthetic:{shown(argument)} is not of the form {FORM}, where SHAPE is a number of "
            f"features or CxHxW, and numbers are above 0 with at most 18 digits, as in {EXAMPLE}"
        )
    shape, samples = tuple(map(int, form[1].split("x"))), int(form[3])
    return DatasetSize(shape, int(form[2]), samples, max(samples // 5, 1), "float32")


def _draw(features: int, classes: int, total: int, seed: int) -> np.ndarray:
    """Draws float32 samples (total, features): prototypes[i mod classes] + noise.

    The noise has 256 levels, because it is fast to take four values from each 32-bit random word.
    """
    word = np.arange(-(-features // 4))
    noise = keyed.bits(keyed.key(seed, "synthetic", "noise"), word, np.arange(total)[:, None])
    x: np.ndarray = noise.astype("<u4", copy=False).view("uint8")[:, :features].astype("float32")
    x -= 127.5
    x *= AMPLITUDE / 127.5
    key = keyed.key(seed, "synthetic", "prototypes")
    prototypes = keyed.normal(key, np.arange(features), np.arange(min(classes, total))[:, None])
    for c in range(len(prototypes)):
        x[c::classes] += prototypes[c].astype("float32")
    return x
