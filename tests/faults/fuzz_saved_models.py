"""Damaged safetensors files for --load."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from fuzzing import Fault, Outcome, command, damaged
from safetensors.numpy import load, load_file

RUN = ["--model=iris-mlp", "--data=iris", "--steps=1", "--quiet"]


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    path = folder / "m.safetensors"
    path.write_bytes(damaged(rng, _good()))
    status, outcome = command([*RUN, f"--load={path}"], str(path))
    is_checked = b"parameters_sha256" in path.read_bytes()[:4096]
    if status == 0 and is_checked and not _same(path):
        return Outcome(Fault.WRONG, "damaged weights were loaded")
    return outcome


@cache
def _good() -> bytes:
    """A file that the command has saved."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        status, outcome = command([*RUN, f"--save={path}"])
        assert status == 0, outcome.what
        return path.read_bytes()


def _same(path: Path) -> bool:
    good, found = load(_good()), load_file(path)
    return good.keys() == found.keys() and all(
        np.array_equal(a, found[name]) for name, a in good.items()
    )
