"""`simulate collective --sweep`: over sizes and over ranks, as text, JSON and a picture."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nnmpi.addons.simulator import collective, sweep
from nnmpi.collectives.price import Link, Network

KIND = "collective"

NETWORK = Network(Link(5e-6, 1e-10))


def test_a_sweep_over_sizes_ends_at_the_size_given(simulator: Any) -> None:
    out = simulator("--ranks 6 --bytes 1MB --sweep bytes").out.splitlines()
    assert out[0] == "all-reduce: 6 ranks"
    sizes = [line.split("  ")[0] for line in out[3:-2]]
    assert sizes == ["100 B", "300 B", "1 kB", "3 kB", "10 kB", "30 kB", "100 kB", "300 kB", "1 MB"]
    assert "187 us*" in out[-3]
    assert out[-1] == "fastest: multiplying up to 1 MB"
    some = simulator("--ranks 6 --bytes 1MB --sweep bytes --algorithm ring,doubling").out
    assert re.search("fastest: doubling up to .*, ring up to 1 MB$", some)


def test_each_time_is_that_of_the_simulation_alone(simulator: Any) -> None:
    rows = json.loads(
        simulator("--ranks 12 --bytes 1e6 --sweep ranks --algorithm ring,tree --json").out
    )
    assert [r["ranks"] for r in rows if r["algorithm"] == "tree"] == [2, 3, 4, 6, 8, 12]
    for r in rows:
        alone = collective.simulate("all-reduce", r["algorithm"], r["ranks"], r["bytes"], NETWORK)
        assert r["seconds"] == alone["seconds"]


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_a_picture_of_a_sweep(simulator: Any, tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    assert simulator(f"--ranks 8 --bytes 1MB --sweep bytes --plot {path}").status == 0
    assert path.read_text(encoding="utf-8").count("<path") > len(collective.PRICED)
    refused = simulator(f"--ranks 8 --bytes 1MB --sweep bytes --plot {tmp_path}/x.doc")
    assert "use .png, .svg or .pdf, or leave out --plot" in refused.err


def test_sizes_below_the_first_are_swept_alone() -> None:
    [[row]] = sweep.sweep("bytes", "all-reduce", ["ring"], 4, 50, NETWORK)
    assert row["bytes"] == 50
