"""Communication in the background: lanes of their own, counters, and how they are drawn."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.runs import fit

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

RANKS = 2


def trace(path: Path, **options: Any) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The events of a run on two ranks, and the bytes of the buckets of each."""
    given = {"model": "mlp:64-96-96-96-10", "epochs": 1, "batch_size": 360, "trace": str(path)}

    def run(comm: Comm) -> list[int]:
        trainer = Trainer(Config(**given, **options), comm=comm)
        fit(trainer)
        a = trainer.arrangement
        return [(b.stop - b.start) * a.dtype.itemsize for b in a.model_on(comm.rank).buckets]

    buckets = threads.run(RANKS, run)
    return json.loads(path.read_text())["traceEvents"], buckets


def chosen(events: list[dict[str, Any]], rank: int, category: str) -> list[dict[str, Any]]:
    return [e for e in events if e["pid"] == rank and e.get("cat") == category]


def counted(events: list[dict[str, Any]], rank: int, name: str) -> list[tuple[float, int]]:
    """The times and values of a counter."""
    own = [e for e in events if e["ph"] == "C" and e["pid"] == rank and e["name"] == name]
    return [(e["ts"], e["args"]["bytes"]) for e in own]


def end(event: dict[str, Any]) -> float:
    """To the nanosecond."""
    return round(event["ts"] + event["dur"], 3)


def test_sums_of_buckets_are_shown_beside_the_backward_pass(tmp_path: Path) -> None:
    events, buckets = trace(tmp_path / "t.json", allreduce="ring", bucket_mb=0.03)
    for rank in range(RANKS):
        assert len(buckets[rank]) >= 3
        works = chosen(events, rank, "background")
        passes = chosen(events, rank, "B")
        for step in {e["args"]["step"] for e in passes}:
            units = [e for e in passes if e["args"]["step"] == step]
            own = [e for e in works if e["args"]["step"] == step]
            assert [e["args"]["bytes"] for e in own] == buckets[rank][::-1]
            assert len(units) == len(own)
            for unit, e in zip(units, own, strict=True):  # each starts when a unit is done
                assert end(unit) <= e["ts"] <= end(e)
                assert (e["name"], e["args"]["algorithm"]) == ("all_reduce", "ring")
            assert own[-2]["ts"] < units[-1]["ts"]
        for lane in {e["tid"] for e in works}:
            assert lane > 0
            own = [e for e in works if e["tid"] == lane]
            assert all(end(a) <= b["ts"] for a, b in pairwise(own))
        named = [e for e in events if e["name"] == "thread_name" and e["pid"] == rank]
        assert {e["tid"] for e in named} == {e["tid"] for e in works}


def test_no_byte_is_under_way_at_the_end_of_a_step(tmp_path: Path) -> None:
    events, buckets = trace(tmp_path / "t.json", allreduce="ring", bucket_mb=0.03)
    for rank in range(RANKS):
        values = counted(events, rank, "bytes under way")
        assert len(values) == 2 * len(buckets[rank]) * 4  # steps
        assert values == sorted(values, key=lambda pair: pair[0])
        assert 0 < max(n for _, n in values) <= sum(buckets[rank])
        for update in chosen(events, rank, "APPLY"):
            assert [n for ts, n in values if ts <= end(update)][-1] == 0


def test_messages_of_a_pipeline_are_in_the_background(tmp_path: Path) -> None:
    events, _ = trace(tmp_path / "t.json", pp=2, micro_batches=3)
    works = [e for rank in range(RANKS) for e in chosen(events, rank, "background")]
    received = {e["args"]["bytes"] for e in works if e["name"] == "irecv"}
    assert received
    assert received <= {samples * 96 * 4 for samples in (119, 120)}  # of a micro-batch
