"""The accuracy of CNNs by each convolution in 16 bits: python benchmarks/conv_training.py DIR

DIR has the files of MNIST. Each model is trained from five seeds by the command's options, and its
accuracy on the samples that are held out is told after the last epoch.

colour   MNIST as the images of CIFAR are: 3 x 32 x 32, each digit shifted, in a colour of its own,
         before a darker one, with noise; 1,600 for training and 1,000 held out, 5 epochs
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = range(5)

WAYS = [
    ("float32", "auto"),
    *((dtype, way) for dtype in ("bfloat16",) for way in ("im2col", "winograd2", "winograd4")),
]
"""Types of numbers and algorithms."""


def colour(directory: str) -> dict[str, np.ndarray]:
    """The arrays of `colour`."""
    from nnmpi import data

    rng, found = np.random.default_rng(0), data.load("mnist", data_dir=directory)
    arrays = {}
    for name, split, n in (("", found.train, 1600), ("_test", found.test, 1000)):
        ink = np.zeros((n, 32, 32), np.float32)
        for image, digit in zip(ink, np.asarray(split.x[:n]).reshape(n, 28, 28), strict=True):
            down, right = rng.integers(5, size=2)
            image[down : down + 28, right : right + 28] = digit / 255
        back, more = rng.random((2, n, 3, 1, 1), dtype=np.float32)
        noise = rng.standard_normal((n, 3, 32, 32), dtype=np.float32)
        arrays["x" + name] = 0.3 * back + (0.5 + more) * ink[:, None] + 0.1 * noise
        arrays["y" + name] = np.asarray(split.y[:n])
    return arrays


def accuracy(seed: int, dtype: str, way: str, **options: Any) -> float:
    """The accuracy in percent after the last epoch."""
    import nnmpi

    config = nnmpi.Config(seed=seed, dtype=dtype, convolution=way, quiet=True, **options)
    return 100 * float(nnmpi.Trainer(config).fit()["accuracy"])


def main() -> None:
    """Print a row for each data set, type and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--data", choices=("digits", "mnist", "colour"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "colour.npz")
        np.savez(file, **colour(options.directory))
        cases: dict[str, dict[str, Any]] = {
            "digits": {"model": "digits-cnn", "data": "digits"},
            "mnist": {"model": "mnist-cnn", "data": "mnist", "data_dir": options.directory},
            "colour": {"model": "cifar-cnn", "data": str(file), "epochs": 5, "lr": 3e-4},
        }
        for name, case in cases.items():
            for dtype, way in WAYS if options.data in (None, name) else ():
                found = [accuracy(seed, dtype, way, **case) for seed in SEEDS]
                row = " ".join(f"{a:.2f}" for a in found)
                print(f"{name} {dtype} {way}: {row}, mean {np.mean(found):.2f}", flush=True)


if __name__ == "__main__":
    main()
