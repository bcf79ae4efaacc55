"""What benchmarks refuse before they measure, in one line."""

import pytest
from helpers.benchfiles import Import, refusal

NO_FOLDER = ("--json", "no/such/folder/out.json")
FLAGS = [
    ("collectives", ("--sizes", "258"), "258"),
    ("collectives", ("--sizes", "4 parsecs"), "'4 parsecs'"),
    ("collectives", ("--algorithms", "ring,butterfly"), "'butterfly'"),
    ("collectives", ("--seconds", "nan"), "--seconds nan"),
    ("scaling", ("--cases", "W4"), "W4"),
    ("scaling", ("--ranks", "3"), "--ranks 3"),
    ("scaling", ("--allreduce", "butterfly"), "'butterfly'"),
    ("scaling", ("--faster",), "--faster"),
    ("pipeline", ("--only", "memory,speed"), "'speed'"),
    ("pipeline", ("--micro-batches", "4,0"), "--micro-batches 4,0"),
    ("sharding", ("--only", "memory,speed"), "'speed'"),
    *((script, ("--rounds", "0"), "--rounds") for script in ("scaling", "pipeline", "sharding")),
    *((script, NO_FOLDER, NO_FOLDER[1]) for script in ("collectives", "pipeline", "sharding")),
]


@pytest.mark.parametrize(("script", "flags", "words"), FLAGS)
def test_unusable_flags_are_reported_in_one_line(
    script: str,
    flags: tuple[str, ...],
    words: str,
    module: Import,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = refusal(lambda: module(script).parse(flags), capsys)
    assert words in error
    assert error.count("\n") == 1
