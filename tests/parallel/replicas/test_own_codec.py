"""The codecs of docs/compression.md as they stand, and others named as package.module:NAME."""

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.mpijob import ROOT

from nnmpi import Config, Trainer, simulate, train
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.options.cli import from_toml, refuse_code
from nnmpi.parallel.compression import proof
from nnmpi.parallel.compression.codecs import CODECS

PAGE = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
CODE, SCALED = (x for x in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M) if "Codec" in x)
OTHERS = """
def differs(bucket, _):
    total = yield from halves(bucket, _)
    return total + bucket.wire.rank * 1e-6

def mixes(bucket, _):
    row = bucket.row
    sent = np.round(row / abs(row).max()) * abs(row).max()
    row -= sent
    yield bucket.wire.start(sent, bucket.algorithm)
    return sent

def ends_early(bucket, _):
    if bucket.wire.rank:
        yield bucket.wire.start(bucket.row.copy(), "ring")
    return bucket.row

def starts_another(bucket, _):
    n = bucket.row.size - bucket.wire.rank
    yield bucket.wire.start(bucket.row[:n].copy(), "ring")
    return bucket.row

def never_ends(bucket, _):
    while True:
        yield bucket.wire.start(bucket.row.copy(), "ring")

def is_short(bucket, _):
    yield bucket.wire.start(bucket.row.copy(), "ring")
    return bucket.row[:2]

def blocks(bucket, _):
    yield bucket.wire.all_reduce(bucket.row)

def has_nan(bucket, _):
    row = bucket.row
    for part in bucket.parts:
        row[part] /= abs(row[part]).max()
    return (yield from halves(bucket, _))

def moves_factors(bucket, _):
    bucket.factors[...] += bucket.wire.rank
    return (yield from halves(bucket, _))

def waits(bucket, _):
    yield bucket.wire.irecv(np.empty(3, np.float32), 1 - bucket.wire.rank % 2)
    return bucket.row

def tells(bucket, _):
    yield bucket.wire.isend(bucket.row[:3].copy(), (bucket.wire.rank + 1) % bucket.wire.size)
    return (yield from halves(bucket, _))

DIFFERS, MIXES, ENDS, ANOTHER, NEVER, SHORT, BLOCKS, NAN, FACTORS, WAITS, TELLS = map(Codec, (
    differs, mixes, ends_early, starts_another, never_ends, is_short, blocks, has_nan,
    moves_factors, waits, tells))
FAILS = Codec(lambda bucket, _: 1 / 0)
PLAIN = Codec(lambda bucket, _: bucket.row)
NUMBER = 3
"""
REFUSED = {
    "DIFFERS": "the sum on rank 1 of 2 is not that on rank 0, so replicas would differ",
    "MIXES": "the sum of a tensor of shape (1, 7) over 2 ranks depends on the others of its bucket",
    "ENDS": "rank 0 of 2 ends while others start a transfer",
    "ANOTHER": "rank 1 of 2 starts start of 2,472 float32, and rank 0 start of 2,473 float32",
    "NEVER": "it has not ended after 1000 phases",
    "SHORT": "its sum is not an array of the 2473 elements",
    "BLOCKS": "'ProofWire' object has no attribute 'all_reduce' (",
    "NAN": "on 2 ranks the sum and what is kept differ from gradients of about 1 by ",
    "FACTORS": "the factor on rank 1 of 2 is not that on rank 0",
    "WAITS": "rank 0 has no such message from rank 1",
    "TELLS": "rank 1 does not receive a message from rank 0",
    "FAILS": "ZeroDivisionError: division by zero (",
    "PLAIN": "its function is no generator: it has to yield what it starts",
    "NUMBER": "must be a Codec of nnmpi.parallel.compression.codecs; it is of type int",
    "MISSING": "has no 'MISSING'",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves.py").write_text(CODE)
    (tmp_path / "scaled.py").write_text(SCALED)
    (tmp_path / "my_codecs.py").write_text(CODE + OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", CODECS)
def test_the_proof_holds_for_each_codec(name: str) -> None:
    proof.prove(CODECS[name], {"topk": 0.05, "powersgd": 2}.get(name, 0))


@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning")
def test_one_that_cannot_be_used_is_refused_by_its_name(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(f"compress 'my_codecs:{name}'", words):
        proof.find(f"my_codecs:{name}")
    command = f"--model iris-mlp --data iris --steps 1 --compress my_codecs:{name}"
    assert train.main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_the_proof_says_what_a_codec_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "forgets.py").write_text(CODE.replace("    row -= sent\n", ""))
    assert train.main(["--compress", "forgets:HALVES"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nnmpi.train: compress 'forgets:HALVES': on 2 ranks the sum and")
    assert "leave in bucket.row what was not sent" in said


def trained(ranks: int, compress: str | None) -> list[tuple[dict[str, Any], bytes]]:
    """The last event and the parameters of each rank."""

    def fit(comm: Comm) -> tuple[dict[str, Any], bytes]:
        config = Config(
            model="iris-mlp", data="iris", steps=20, compress=compress, check_copies=1, seed=3,
            allreduce="ring",
        )  # fmt: skip
        with Trainer(config, comm=comm) as trainer:
            done = trainer.fit(NullReport())
            values = [p.array.tobytes() for p in trainer.model.parameters()]
            return done, b"".join(values)

    return threads.run(ranks, fit)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("codec", ["halves:HALVES", "scaled:SCALED"])
def test_replicas_stay_equal_and_train_like_others(codec: str, ranks: int) -> None:
    runs = trained(ranks, codec)
    assert len({values for _, values in runs}) == 1
    plain = trained(ranks, None)
    assert runs[0][0]["loss"] == pytest.approx(plain[0][0]["loss"], rel=1e-2)
    assert runs[0][1] != plain[0][1]


PAPER = shlex.split("--model iris-mlp --data iris --dry-run --json --ranks 3 --compress")


@pytest.mark.parametrize(
    ("codec", "nbytes"), [("halves:HALVES", 2 * 403), ("scaled:SCALED", 403 + 4 * 4)]
)
def test_steps_on_paper_count_what_it_sends(
    codec: str, nbytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*PAPER, codec]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    sent = [kind["sent"]["dp"]["bytes"] for kind in kinds]
    to_others = 2 * nbytes  # besides, ranks agree on the loss
    assert all(to_others < nbytes < to_others + 100 for nbytes in sent), sent


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("xp.empty(len(bucket.parts)", "np.empty(len(bucket.parts)", "xp_of(x).empty, not by nump"),
        (
            "xp.maximum(abs(row[part]).max()",
            "max(abs(row[part]).max()",
            "choose by where or maximum",
        ),
    ],
)
def test_without_data_a_codec_is_told_what_to_write(
    old: str, new: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert old in SCALED
    (tmp_path / "reads.py").write_text(SCALED.replace(old, new))
    assert train.main([*PAPER, "reads:SCALED"]) != 0
    assert message in capfd.readouterr().err


def test_parts_of_a_bucket_may_not_depend_on_each_other(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(SCALED.replace("abs(row[part]).max()", "abs(row).max()"))
    with refused("compress 'whole:SCALED'", "depends on the others of its bucket"):
        proof.find("whole:SCALED")


def test_no_price_is_made_up_for_a_codec(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["sync", "--parameters", "1e9", "--compress", "halves:HALVES"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only codecs of nnmpi are priced here; nnmpi.train --dry-run --ranks 2 --co" in line


def test_code_of_a_file_is_imported_only_with_leave(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('compress = "halves:HALVES"')
    config = from_toml(str(tmp_path / "run.toml"))
    check = partial(refuse_code, "run.toml", config)
    with refused("compress 'halves:HALVES' would import and run the code of halves"):
        check(())
    check(("compress",))
    refuse_code("run.toml", Config(), ())
