"""The codecs of docs/compression.md as they stand, and others named as package.module:NAME."""

import json
import re
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.mpijob import ROOT

from nnmpi import Config, Trainer, simulate, train
from nnmpi.addons.compression import proof
from nnmpi.addons.compression.codecs import CODECS
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.options.cli import from_toml, refuse_code

PAGE = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
CODE, SCALED = (x for x in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M) if "Codec" in x)
REFUSED = tomllib.loads(Path(__file__).with_name("own_codecs.toml").read_text(encoding="utf-8"))
OTHERS = "\n\n".join(row["code"] for row in REFUSED.values() if "code" in row)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves.py").write_text(CODE)
    (tmp_path / "scaled.py").write_text(SCALED)
    (tmp_path / "my_codecs.py").write_text(f"{CODE}\n{OTHERS}")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", CODECS)
def test_the_proof_holds_for_each_codec(name: str) -> None:
    proof.prove(CODECS[name], {"topk": 0.05, "powersgd": 2}.get(name, 0))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning")
def test_one_that_cannot_be_used_is_refused_by_its_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = REFUSED[name]["says"]
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
    assert train.main([*PAPER, "reads:SCALED"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "compress 'reads:SCALED' cannot be predicted: " in line
    assert message in line


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
