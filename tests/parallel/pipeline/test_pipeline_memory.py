"""What a rank of a pipeline holds: its own stages, of others one tensor, nothing of old steps."""

import gc
import os
import sys
import threading
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from helpers.mpijob import ROOT, run

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset, Split
from nnmpi.nn.models import mlp
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.nn.store import ALIGN, FlatStore
from nnmpi.nn.tensor_files import StoredTensor
from nnmpi.parallel.pipeline.stages import OnAnotherRank
from nnmpi.run.report import NullReport, Report

WIDTHS = (64, 96, 96, 96, 96, 96, 96, 96, 10)  # eight layers
LAYER = 97 * 96  # numbers in one of them
BASE: dict[str, Any] = {"batch_size": 12, "micro_batches": 3, "steps": 1, "optimizer": "sgd"}


def data(rows: int = 24) -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows, 64), "float32"), np.arange(rows) % 10
    return Dataset("noise", Split(x, y), Split(x[:5], y[:5]), 10, "")


def build() -> nnmpi.nn.Module:
    return mlp(*WIDTHS)


class Drawn:
    """The most numbers of a model that had memory at one time, its stores, and what was read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most, self.read = Counter[Any](), Counter[int]()
        self._stores = defaultdict[Any, WeakSet[FlatStore]](WeakSet)
        draw, make, part = Parameter.draw, FlatStore.__init__, StoredTensor.read

        def drawn(p: Parameter, *arguments: Any) -> None:
            draw(p, *arguments)
            root: Any = p._parent.root
            now = sum(q.size for q in root.parameters() if self._has_memory(q))
            self.most[root] = max(self.most[root], now)

        def made(store: FlatStore, parameters: Any, *more: Any, **named: Any) -> None:
            make(store, parameters, *more, **named)
            if module := parameters[0]._parent:  # the update that --verify compares with has none
                self._stores[module.root].add(store)

        def read(source: StoredTensor, place: Place) -> np.ndarray:
            found = part(source, place)
            self.read[threading.get_ident()] += found.size if found.size > 1 else 0
            return found

        patch.setattr(Parameter, "draw", drawn)
        patch.setattr(FlatStore, "__init__", made)
        patch.setattr(StoredTensor, "read", read)

    def stored(self, model: nnmpi.nn.Module) -> int:
        """The numbers in flat stores of its parameters."""
        gc.collect()
        return sum(store.flat.size for store in self._stores[model])

    @staticmethod
    def _has_memory(p: Parameter) -> bool:
        return p.is_drawn and not isinstance(p.store, OnAnotherRank)


HOW: dict[str, tuple[int, dict[str, Any]]] = {
    "2 stages": (2, {"pp": 2}),
    "4 stages": (4, {"pp": 4}),
    "a cut by hand": (4, {"pp": 4, "cut": "3,7,11"}),
    "8 stages on 4 ranks": (4, {"pp": 4, "schedule": "interleaved"}),
    "copies": (4, {"dp": 2, "pp": 2, "allreduce": "ring"}),
    "recompute": (2, {"pp": 2, "recompute": True}),
    "verify": (4, {"pp": 4, "verify": True, "dtype": "float64"}),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loads", [False, True], ids=["drawn", "loaded"])
@pytest.mark.parametrize("how", HOW)
def test_no_rank_holds_the_whole_model(
    how: str, loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "m.safetensors")
    if loads:
        Trainer(Config(**BASE, save=path), build, data(), comm_self()).fit(NullReport())
    ranks, options = HOW[how]
    drawn = Drawn(monkeypatch)

    def rank(comm: Comm) -> tuple[int, int]:
        config = Config(**BASE, **options, load=path if loads else None)
        trainer = Trainer(config, build, data(), comm)
        own = sum(p.size for p in trainer.part.parameters)
        padding = ALIGN * (2 + 2 * len(trainer.part.parameters))
        assert own <= drawn.stored(trainer.model) <= own + padding
        trainer.fit(NullReport())
        assert drawn.most[trainer.model] <= max(own, LAYER)
        assert own <= drawn.stored(trainer.model) <= own + padding
        return own, drawn.read[threading.get_ident()]

    whole = sum(p.size for p in build().parameters())
    found = threads.run(ranks, rank)
    assert sum(own for own, _ in found) == whole * options.get("dp", 1)
    for own, read in found:
        assert own < whole
        both = own + whole if "verify" in options else own
        assert read == (both if loads else 0)


def test_a_file_is_written_one_tensor_at_a_time(tmp_path: Path) -> None:
    """And the digest is computed so: rank 0 has room for few tensors of the others."""
    widths = (64, *[300] * 12, 10)
    peaks = []

    def rank(comm: Comm) -> None:
        config = Config(**BASE, pp=4, save=str(tmp_path / "m.safetensors"), dtype="float64")
        trainer = Trainer(config, lambda: mlp(*widths), data(), comm)
        comm.barrier()
        if comm.rank == 0:
            tracemalloc.start()
        comm.barrier()
        trainer.save(config.save)
        trainer.strategy.entries.sha256()
        comm.barrier()
        if comm.rank == 0:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        trainer.close()

    threads.run(4, rank)
    layer = 8 * 300 * 300
    assert 0 < peaks[0] < 5 * layer  # of 11, of which three are on other ranks each


# ---- over the steps


class Measures(Report):
    """The least memory that Python had between two steps, after 50 steps and at the end."""

    def __init__(self, measure: Callable[[], int]) -> None:
        super().__init__(quiet=True)
        self.measure, self.found = measure, dict[int, int]()

    def event(self, event: Any) -> None: ...

    def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        if 50 <= step < 56 or step >= total - 6:
            gc.collect()
            self.found[step] = self.measure()

    @property
    def growth(self) -> int:
        early = min(n for step, n in self.found.items() if step < 60)
        return min(n for step, n in self.found.items() if step >= 60) - early


STEPS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "gpipe": {"schedule": "gpipe", "recompute": True},
    "zb-h1": {"schedule": "zb-h1"},
    "interleaved": {"schedule": "interleaved"},
    "pipedream": {"schedule": "pipedream", "micro_batches": 1},
}


@pytest.mark.parametrize(
    "how",
    [
        name if name in ("zb-h1", "pipedream") else pytest.param(name, marks=pytest.mark.long)
        for name in STEPS
    ],
)
def test_memory_does_not_grow_with_the_steps(how: str) -> None:
    """A kept activation of each step would be 60 times 4 KB."""

    def rank(comm: Comm) -> int:
        options = {**BASE, **STEPS[how], "pp": 2, "steps": 120}
        trainer = Trainer(Config(**options), lambda: mlp(64, *[96] * 3, 10), data(3600), comm)
        report = Measures(lambda: tracemalloc.get_traced_memory()[0])
        trainer.fit(report)
        return report.growth

    tracemalloc.start()
    try:
        growth = threads.run(2, rank)
    finally:
        tracemalloc.stop()
    assert max(growth) < 100e3


def test_a_prediction_has_no_more_micro_batches_than_a_batch_has_samples() -> None:
    def facts(comm: Comm) -> dict[str, Any]:
        config = Config(pp=2, schedule="gpipe", cut="5", batch_size=4, micro_batches=10_000)
        return Trainer(config, build, data(), comm=comm).describe()

    for found in threads.run(2, facts):
        held = [4 * stage["activation_bytes"] for stage in found["stages"]]
        assert found["peak_activation_bytes"] == held


def test_memory_of_ranks_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    """Of processes: a kept activation of each step would be 90 times 0.5 MB."""
    script = tmp_path / "job.py"
    script.write_text(RESIDENT)
    path = os.pathsep.join([str(ROOT), *sys.path])  # with this file's folder and the helpers
    ended = run(2, script, timeout=150, env={"PYTHONPATH": path}, python=sys.executable)
    assert ended.status == 0, ended
    growth = [int(line.split()[1]) for line in ended.out.splitlines()]
    assert len(growth) == 2
    assert max(growth) < 25e6


RESIDENT = """
import os
from nnmpi import Config, Trainer
from nnmpi.comm import world
from nnmpi.nn.models import mlp
from test_pipeline_memory import Measures, data

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

config = Config(pp=2, batch_size=24, micro_batches=2, steps=150, cut="5", quiet=True)
report = Measures(resident)
Trainer(config, lambda: mlp(64, 8, 5000, 8, 10), data(7200), world()).fit(report)
print("growth", report.growth, flush=True)
"""
