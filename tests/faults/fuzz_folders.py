"""Damaged folders of GPT-2: files of JSON, weights in one file, and in shards with their index."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from fuzzing import Outcome, damaged, refused
from helpers.shards import cut

from nnmpi import nn


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    files = _good(bool(rng.integers(2)))
    wrong = sorted(files)[rng.integers(len(files))]
    for name, content in files.items():
        (folder / name).write_bytes(damaged(rng, content) if name == wrong else content)
    return refused(lambda: nn.gpt2.load_gpt2(folder), str(folder))[1]


@cache
def _good(in_shards: bool) -> dict[str, bytes]:
    """The files of a folder, by name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        published = {"generation_config.json": {"eos_token_id": 2}}
        nn.gpt2.save_gpt2(nn.GPT(2, 1, 2, 3, 4, published=published), folder)
        if in_shards:
            cut(folder, 2)
        return {path.name: path.read_bytes() for path in folder.iterdir()}
