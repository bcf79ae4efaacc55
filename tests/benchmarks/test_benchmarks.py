"""The scripts of benchmarks/: each runs, and writes a row of figures for all that it measures."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.benchfiles import BENCHMARKS
from helpers.mpijob import launcher, run
from helpers.programs import python

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None


class Case(NamedTuple):
    """A small run of a script, which starts its ranks itself where `ranks` is 0; `subjects` are
    values of the column `by`, each of which must have a row."""

    script: str
    ranks: int
    flags: str
    by: str
    subjects: set[str]


SUMS = {"ring", "tree", "ps", "halving", "hierarchical", "mpi", "shared", "MPI_Allreduce"}
JOBS = "--rounds 1 --seconds 0.001"
CASES = [
    Case("collectives", 2, "--sizes 256,4KB --seconds 0.01", "algorithm", SUMS),
]
LONG = [
    Case(
        "sync", 3, "--steps 12 --repeats 1 --base 5 --batch 6", "subject", {"bsp", "ssp 3", "asp"}
    ),
    Case(
        *("scaling", 2, "--cases W1 --rounds 2 --seconds 0.01 --hidden --allreduce ring"),
        *("subject", {"nnmpi, overlap", "nnmpi, no overlap", "nnmpi, compute alone"}),
    ),
    Case("scaling", 0, f"--cases W1 {JOBS} --allreduce ring", "scaling", {"weak", "strong"}),
    Case(
        *("pipeline", 0, f"--small {JOBS} --only speed-up,schedules,memory,recompute,bytes"),
        *("section", {"speed-up", "schedules", "memory", "recompute", "bytes"}),
    ),
    Case(
        *("sharding", 0, f"--small {JOBS} --only memory,bytes,time,weak,halo"),
        *("section", {"memory", "bytes", "time", "weak", "halo"}),
    ),
    Case(
        *(
            "communication",
            0,
            "--small --cases gpt --replicas 2 --seeds 0 --ways dp,local30,streaming,ring",
        ),
        *("algorithm", {"data parallelism", "local, H = 30", "streaming, H = 30", "gossip, ring"}),
    ),
    Case("language", 0, f"{JOBS} --only steps", "subject", {"nnmpi"}),
    Case("language", 0, f"--small {JOBS} --only weak", "layout", {"1 rank", "tp 2", "pp 2"}),
    Case("goodput", 0, "--runs 1 --steps 60 --spares 1 --mttf 0.5", "case", {"pp 4"}),
    Case("machines", 0, "--table megatron-2020-v100", "seed", {"as it is"}),
    Case("start", 0, "--ranks 2 4 --repeats 1", "case", {"process", "MPI_Init", "Comms"}),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)],
    ids=lambda case: f"{case.script} {case.by}",
)
def test_a_script_measures_all_that_it_compares(case: Case, tmp_path: Path) -> None:
    launcher(sys.executable)  # skips where there is none
    if case.script == "scaling" and not case.ranks and not HAS_TORCH:
        pytest.skip("PyTorch is not installed")
    script, out = str(BENCHMARKS / f"{case.script}.py"), tmp_path / "rows.json"
    flags = [*case.flags.split(), "--json", str(out)]
    if HAS_MATPLOTLIB and case.script not in ("language", "goodput"):
        flags += ["--plot", str(tmp_path / "rows.png")]
    if case.ranks:
        done = run(case.ranks, script, *flags, timeout=250)
    else:
        done = python(script, *flags, timeout=280)
    assert done.status == 0, done.err
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    assert case.subjects <= {row.get(case.by) for row in rows}
    assert all(row["seconds"] > 0 for row in rows if "ratio" in row and "seconds" in row)
    for row in rows:  # what is counted is what was predicted
        if row.get("section") == "bytes":
            assert row["bytes"] == row["predicted_bytes"]
    if "--plot" in flags and "--hidden" not in flags:
        assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
