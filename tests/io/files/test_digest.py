"""Digests in the metadata of files: a flipped bit is refused, and so are numbers not finite."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import rows
from safetensors.numpy import load_file

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.files import loading
from nnmpi.io.files.saving import FILE, PARAMETERS
from nnmpi.io.output import NullReport

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "zero": (2, {"zero": 3}),
    "pipeline": (2, {"pp": 2}),
    "tensor": (2, {"tp": 2}),
}


def build() -> nn.Sequential:
    """With buffers of two types, which are not in the digest of parameters."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_layout_writes_the_digest_of_its_last_event(way: Any, tmp_path: Path) -> None:
    ranks, options = way
    path = tmp_path / "m"

    def rank(comm: Comm) -> str:
        config = Config(steps=2, save=str(path), **options)
        digest: str = Trainer(config, build, rows(), comm).fit(NullReport())[PARAMETERS]
        return digest

    digests = threads.run(ranks, rank)
    state, metadata = nnmpi.load(path, with_metadata=True)
    assert {metadata[PARAMETERS]} == {*digests}
    assert {*metadata} == {PARAMETERS, FILE, "mean", "std", "model", "data"}
    assert load_file(path).keys() == state.keys()


def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path) -> None:
    """But in the name of the only digest: then the file has none, and what is in it is intact."""
    path = tmp_path / "m"
    nnmpi.save(nn.Linear(3, 2).state_dict(), path, {"mean": "[1.5]"})
    whole = path.read_bytes()
    name = whole.index(FILE.encode())
    for place in (p for p in range(len(whole)) if not name <= p < name + len(FILE)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot load"):
            nnmpi.load(path)
    with refused(f"cannot load {path}: it is damaged", f"remove {FILE} from its metadata"):
        nnmpi.load(path)


def test_load_of_a_damaged_file_fails_on_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "m"
    nnmpi.save(build().state_dict(), path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)

    def rank(comm: Comm) -> None:
        error = OtherRankError if comm.rank else ValueError
        with pytest.raises(error, match="it is damaged"):
            Trainer(Config(load=str(path), pp=2), build, rows(), comm)

    threads.run(2, rank)


@pytest.mark.parametrize(
    ("number", "dtype", "words"),
    [
        (np.nan, "float32", "0.weight has the value nan, which is not finite"),
        (-np.inf, "float64", "0.weight has the value -inf, which is not finite"),
        (1e6, "float16", "0.weight has the value 1000000.0, which is too large for float16"),
    ],
)
def test_weights_that_are_not_finite_are_refused(
    number: float, dtype: str, words: str, tmp_path: Path
) -> None:
    m = build().to("float64")
    state = m.state_dict()
    state["0.weight"] = state["0.weight"].clone()
    state["0.weight"][1, 2] = number
    nnmpi.save(state, tmp_path / "m")
    with refused(f"--load {tmp_path / 'm'}: {words}; load another file"):
        loading.load_into(tmp_path / "m", build().to(dtype))
