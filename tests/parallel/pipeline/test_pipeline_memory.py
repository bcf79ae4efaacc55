"""What a rank of a pipeline holds: its own stages, of others one tensor, nothing of old steps."""

import gc
import threading
import tracemalloc
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

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
from nnmpi.run.report import NullReport

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


def test_a_prediction_has_no_more_micro_batches_than_a_batch_has_samples() -> None:
    def facts(comm: Comm) -> dict[str, Any]:
        config = Config(pp=2, schedule="gpipe", cut="5", batch_size=4, micro_batches=10_000)
        return Trainer(config, build, data(), comm=comm).describe()

    for found in threads.run(2, facts):
        held = [4 * stage["activation_bytes"] for stage in found["stages"]]
        assert found["peak_activation_bytes"] == held
