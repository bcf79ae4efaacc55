"""Configs of small transformers on windows of tokens, of what core has alone."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from helpers.training.transformer_models import Decoder
from nnmpi import Config

VOCABULARY, WINDOWS = 80, 2000
FOLDER = TemporaryDirectory()
"""It has a file of data for each number of positions."""


def of_2x2x16() -> Decoder:
    return Decoder(VOCABULARY, 16, 2, 2, 16, 0)


def of_2x1x16() -> Decoder:
    return Decoder(VOCABULARY, 16, 2, 1, 16, 0)


def of_4x2x16() -> Decoder:
    return Decoder(VOCABULARY, 16, 4, 2, 16, 0)


def of_4x4x32() -> Decoder:
    return Decoder(VOCABULARY, 32, 4, 4, 32, 0)


def of_8x4x32() -> Decoder:
    return Decoder(VOCABULARY, 32, 8, 4, 32, 0)


def decoder(sizes: str, positions: int, **options: Any) -> Config:
    """A config of the model of so many layers, heads and channels on windows of random tokens."""
    path = Path(FOLDER.name) / f"{positions}.npz"
    if not path.exists():
        x = np.random.default_rng(0).integers(0, VOCABULARY, (WINDOWS, positions))
        np.savez(path, x=x, y=x)
    return Config(model=f"helpers.decoders:of_{sizes}", data=str(path), **options)
