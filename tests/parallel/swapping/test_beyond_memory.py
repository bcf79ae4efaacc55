"""Training in less memory than a step needs: the same bits, within the limit, with dp too."""

import ctypes
import gc
import json
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.mpijob import environment, run
from helpers.training.graph_models import GRAPH_MODELS

from nnmpi import Config, Trainer, native
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.kernels.epilogue import constant
from nnmpi.parallel.arrangement.residence import Choice, Disk, Residence, UnitLoad, seconds
from nnmpi.parallel.paper.activations import activations
from nnmpi.parallel.paper.memory import memory
from nnmpi.parallel.planning import residences
from nnmpi.parallel.swapping import arena
from nnmpi.parallel.swapping.arena import Arena

pytestmark = pytest.mark.skipif(
    native.kernel("arena") is None, reason="there is no arena without compiled kernels on Linux"
)
QUICK = {"steps": 2, "epochs": 1, "seed": 3}
CASES: dict[str, dict[str, Any]] = {
    "batch norm, dropout": {"model": "digits-cnn", "batch_size": 96},
    "pooling": {"model": "cifar-cnn", "data": "synthetic:3x32x32:10:64", "batch_size": 24},
    "attention": {
        "model": "gpt:2x2x32",
        "data": "text",
        "dropout": 0.1,
        "context": 48,
        "sample_every": 2,
    },
    "clipping": {"model": "digits-cnn", "clip_norm": 0.1, "micro_batches": 3},
}
MIXES = [*permutations(Residence)]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)


def mixed(order: Sequence[Residence], monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are kept, swapped and computed again in turn, as far as they fit."""

    def choose(units: Sequence[UnitLoad], memory: float, disk: Disk, state: float = 0.0) -> Choice:
        choice = tuple(islice(cycle(order), len(units)))
        for i, how in enumerate(choice):
            if seconds(units, choice, memory, disk, state) == np.inf and how is not Residence.SWAP:
                choice = (*choice[:i], Residence.SWAP, *choice[i + 1 :])
        return choice

    monkeypatch.setattr(residences, "choose", choose)


def trained(trainer: Trainer) -> str:
    with trainer:
        digest: str = trainer.fit()["parameters_sha256"]
    return digest


def needed(trainer: Trainer) -> int:
    a, batch = trainer.arrangement, trainer.config.batch_size
    return memory(a, 0, batch).total + activations(a, 0, batch)


def both(share: float, comm: Comm | None = None, build: Any = None, **how: Any) -> set[Residence]:
    """Trains with and without so much of the memory that a step needs; the digests are equal."""
    plain = Trainer(Config(**QUICK, **how), build, comm=comm)
    limit = needed(plain) * share
    wanted = trained(plain)
    less = Trainer(Config(**QUICK, **how, memory=f"{limit:.0f}B"), build, comm=comm)
    found = less.arrangement.residences
    assert found is not None
    assert needed(less) <= limit * 1.001
    assert trained(less) == wanted
    return {*found.choice}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", MIXES[::2], ids=lambda order: "-".join(r.value for r in order))
def test_it_has_the_bits_of_a_run_with_enough_memory(
    name: str, order: Sequence[Residence], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(order, monkeypatch)
    assert Residence.SWAP in both(0.9, **CASES[name])


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_models_that_are_no_chains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(MIXES[2], monkeypatch)
    both(0.95, build=GRAPH_MODELS[name], batch_size=256)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [{"allreduce": "ring"}, {"allreduce": "ring", "zero": 1}])
def test_ranks_of_data_parallelism_have_equal_bits_too(how: dict[str, Any]) -> None:
    found = threads.run(2, lambda comm: both(0.92, comm, **CASES["pooling"], **how))
    assert found[0] == found[1]


def test_running_sums_are_on_disk_between_updates(tmp_path: Path) -> None:
    case = {**CASES["pooling"], "batch_size": 8}
    assert both(0.88, clip_norm=0.5, **case, trace=str(tmp_path / "trace.json"))
    with refused("is not enough") as caught:
        Trainer(Config(**QUICK, **case, memory="1MB"))
    least = str(caught.value).partition("use --memory ")[2].partition(" ")[0]
    with Trainer(Config(**QUICK, **case, memory=least)) as trainer:
        found = trainer.arrangement.residences
        assert found is not None
        assert found.in_file > 0


def test_over_mpi() -> None:
    train = ("-m", "nnmpi.train", "--json", "--model", "digits-cnn", "--steps", "3")
    how = ("--batch-size", "512")
    digests = []
    for limit in ((), ("--memory", "7MB")):
        done = run(2, *train, *how, *limit)
        assert done.status == 0, done
        start, *_, last = (json.loads(line) for line in done.out.splitlines())
        assert ("residences" in start) == bool(limit)
        digests.append(last["parameters_sha256"])
    assert digests[0] == digests[1]


def test_enough_memory_changes_nothing() -> None:
    with Trainer(Config(**QUICK, memory="1GB")) as trainer:
        assert trainer.arrangement.residences is None
        assert len(trainer.arrangement.stages) == 1


def test_too_little_memory_says_what_works() -> None:
    with refused("memory 1MB is not enough", "a step needs", "use --memory") as caught:
        Trainer(Config(**QUICK, memory="1MB", batch_size=256))
    least = str(caught.value).partition("use --memory ")[2].partition(" ")[0]
    with Trainer(Config(**QUICK, memory=least, batch_size=256)) as trainer:
        assert trainer.arrangement.residences is not None


def test_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "free_disk", lambda: 1000)
    with refused("memory 30MB: 1 rank of a node", "1 kB free", "TMPDIR"):
        Trainer(Config(**QUICK, memory="30MB", **CASES["pooling"]))


def test_files_in_memory_are_no_place_to_swap_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/dev/shm")
    with refused("memory", "/dev/shm, which is in memory itself", "TMPDIR"):
        arena.check()


def test_a_folder_of_tmpdir_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes /tmp instead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with refused("memory", str(tmp_path / "missing"), "set TMPDIR"):
        arena.check()


def test_it_needs_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernel", lambda name: None)
    with refused("memory: activations cannot be swapped here", "NNMPI_NATIVE=0"):
        arena.check()


def test_pages_that_were_written_come_back_and_blocks_are_used_again() -> None:
    memory, rng = Arena(1 << 22), np.random.default_rng(0)
    numbers = rng.integers(0, 255, 1 << 20, np.uint8)
    with memory.making(1):
        first = numbers.copy()
        short, long = np.ones(100), np.ones(1 << 20)  # too short, and too long, for the arena
    with memory.making(2):
        second = numbers[::-1].copy()
        grown = np.ones(1 << 16)
        grown.resize(1 << 17)
    assert [end - start for start, end in memory.blocks(1)] == [1 << 20]
    memory.retag(1, second[5:])
    assert sum(end - start for start, end in memory.blocks(1)) == 2 << 20
    memory.write_out(memory.blocks(1))
    memory.read_in(memory.blocks(1)[:1])
    memory.trim(0)
    np.testing.assert_array_equal(first, numbers)
    np.testing.assert_array_equal(second, numbers[::-1])
    assert (grown[: 1 << 16].all(), grown[1 << 16 :].any()) == (True, False)
    assert (short.sum(), long.sum()) == (100, 1 << 20)
    (at, _), *_ = memory.blocks(1)
    del first
    memory.trim(0)
    with memory.making(3):
        again = np.zeros(1 << 20, np.uint8)
    assert memory.blocks(3) == [(at, at + (1 << 20))]
    assert not again.any()
    del memory
    np.testing.assert_array_equal(second, numbers[::-1])


def cached(array: np.ndarray) -> float:
    """The share of its pages that are in memory, of this process or in the page cache."""
    pages = (ctypes.c_ubyte * (array.nbytes // mmap.PAGESIZE))()
    at = ctypes.c_void_p(array.__array_interface__["data"][0])
    assert ctypes.CDLL(None).mincore(at, ctypes.c_size_t(array.nbytes), pages) == 0
    return sum(page & 1 for page in pages) / len(pages)


def test_long_zeros_of_relu_do_not_keep_an_arena() -> None:
    def files() -> int:
        return Path("/proc/self/maps").read_text().count("(deleted)")

    gc.collect()
    before, memory = files(), Arena(1 << 22)
    with memory.making(0):
        row = constant((1 << 15,), 0.0, "float32", np)
    assert (files() - before, row.nbytes) == (1, 1 << 17)
    del row, memory
    gc.collect()
    assert files() == before


def test_pages_that_were_written_are_in_no_memory() -> None:
    memory = Arena(1 << 22)
    with memory.making(0):
        array = np.ones(1 << 20, np.uint8)
    assert cached(array) == 1
    memory.write_out(memory.blocks(0))
    assert cached(array) < 0.1
    memory.read_in(memory.blocks(0))
    assert cached(array) == 1


GROWN = """
import json, sys
from pathlib import Path
from nnmpi import Config, Trainer, blas
from nnmpi.parallel.paper.activations import activations
from nnmpi.parallel.paper.memory import memory

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if name in line).split()[1])

blas.tune()
how = {"memory": sys.argv[1]} if sys.argv[1:] else {}
data = "synthetic:3x32x32:10:1024"
trainer = Trainer(Config(model="cifar-cnn", data=data, batch_size=512, steps=2, **how))
a = trainer.arrangement
fixed = memory(a, 0, 512).total
there = fixed - (a.residences.state if a.residences else 0)
before = status("VmRSS") - there
Path("/proc/self/clear_refs").write_text("5")
for step in trainer.strategy.steps(trainer.train, trainer.state):
    pass
print(json.dumps([fixed + activations(a, 0, 512), status("VmHWM") - before]))
trainer.close()
"""


def test_the_peak_of_resident_memory_is_as_much_lower_as_the_limit_is() -> None:
    def grown(*limit: str) -> list[int]:
        command = [sys.executable, "-c", GROWN, *limit]
        done = subprocess.run(
            command, env=environment({}), capture_output=True, text=True, check=True, timeout=200
        )
        found: list[int] = json.loads(done.stdout)
        return found

    need, whole = grown()
    limit, less = grown(f"{int(need * 0.6)}B")
    assert limit <= need * 0.6
    beside = whole - need  # gradients of activations, and what kernels work in
    assert less <= limit + max(beside, 0) + 0.2 * need
