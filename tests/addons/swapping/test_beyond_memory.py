"""Training in less memory than a step needs: the same bits, within the limit, with dp too."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.mpijob import environment, run
from helpers.step_lists import prove_lists
from helpers.training.graph_models import GRAPH_MODELS

from nnmpi import Config, Trainer
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.swapping import arena, within_memory
from nnmpi.addons.swapping.placement import (
    Choice,
    Disk,
    Placement,
    UnitDemand,
    placements_of,
    seconds,
)
from nnmpi.arrays import native
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

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
MIXES = [*permutations(Placement)]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)


def mixed(order: Sequence[Placement], monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are kept, swapped and computed again in turn, as far as they fit."""

    def choose(
        units: Sequence[UnitDemand], memory: float, disk: Disk, state: float = 0.0
    ) -> Choice:
        choice = tuple(islice(cycle(order), len(units)))
        for i, how in enumerate(choice):
            if seconds(units, choice, memory, disk, state) == np.inf and how is not Placement.SWAP:
                choice = (*choice[:i], Placement.SWAP, *choice[i + 1 :])
        return choice

    monkeypatch.setattr(within_memory, "choose", choose)


def trained(trainer: Trainer) -> str:
    with trainer:
        digest: str = trainer.fit()["parameters_sha256"]
    return digest


def needed(trainer: Trainer) -> int:
    a, batch = trainer.arrangement, trainer.config.batch_size
    return memory(a, 0, batch).total + activations(a, 0, batch)


def both(share: float, comm: Comm | None = None, build: Any = None, **how: Any) -> set[Placement]:
    """Trains with and without so much of the memory that a step needs; the digests are equal."""
    plain = Trainer(Config(**QUICK, **how), build, comm=comm)
    limit = needed(plain) * share
    wanted = trained(plain)
    less = Trainer(Config(**QUICK, **how, memory=f"{limit:.0f}B"), build, comm=comm)
    found = placements_of(less.arrangement)
    assert found is not None
    prove_lists(less.arrangement)
    assert needed(less) <= limit * 1.001
    assert trained(less) == wanted
    return {*found.choice}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", MIXES[::2], ids=lambda order: "-".join(r.value for r in order))
def test_it_has_the_bits_of_a_run_with_enough_memory(
    name: str, order: Sequence[Placement], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(order, monkeypatch)
    assert Placement.SWAP in both(0.9, **CASES[name])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_models_that_are_no_chains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(MIXES[2], monkeypatch)
    both(0.95, build=GRAPH_MODELS[name], batch_size=256)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [{"allreduce": "ring"}, {"allreduce": "ring", "zero": 1}])
def test_ranks_of_data_parallelism_have_equal_bits_too(how: dict[str, Any]) -> None:
    found = threads.run(2, lambda comm: both(0.92, comm, **CASES["pooling"], **how))
    assert found[0] == found[1]


def test_optimizer_state_is_on_disk_between_updates(tmp_path: Path) -> None:
    case = {**CASES["pooling"], "batch_size": 8}
    assert both(0.88, clip_norm=0.5, **case, trace=str(tmp_path / "trace.json"))
    with refused("is not enough") as caught:
        Trainer(Config(**QUICK, **case, memory="1MB"))
    least = str(caught.value).partition("use --memory ")[2].partition(" ")[0]
    with Trainer(Config(**QUICK, **case, memory=least)) as trainer:
        found = placements_of(trainer.arrangement)
        assert found is not None
        assert found.state > 0


def test_a_trace_does_not_count_the_disk_as_communication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(MIXES[2], monkeypatch)
    case = {**CASES["pooling"], "trace": str(tmp_path / "trace.json")}
    limit = f"{needed(Trainer(Config(**QUICK, **CASES['pooling']))) * 0.9:.0f}B"
    with Trainer(Config(**QUICK, **case, memory=limit)) as trainer:
        (seconds,) = trainer.fit()["trace"]["ranks"].values()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    microseconds = Counter[str]()
    for event in (event for event in events if event["ph"] == "X"):
        microseconds[event["cat"]] += event["dur"]
    assert microseconds["WRITE"] > 0
    assert microseconds["READ"] > 0
    assert seconds["communicating"] == pytest.approx(microseconds["SUM"] / 1e6, abs=1e-5)


@pytest.mark.long
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
        assert placements_of(trainer.arrangement) is None
        assert len(trainer.arrangement.stages) == 1


def test_too_little_memory_says_what_works() -> None:
    with refused("memory 1MB is not enough", "or more --micro-batches") as caught:
        Trainer(Config(**QUICK, memory="1MB", batch_size=256))
    least = str(caught.value).partition("use --memory ")[2].partition(" ")[0]
    with Trainer(Config(**QUICK, memory=least, batch_size=256)) as trainer:
        assert placements_of(trainer.arrangement) is not None


def test_too_little_memory_for_what_is_held_between_steps_says_what_helps() -> None:
    with refused("memory 100kB is not enough", "or more ranks with --zero 3"):
        Trainer(Config(**QUICK, memory="100kB", batch_size=256))


def test_a_folder_of_tmpdir_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes /tmp instead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with refused("memory", str(tmp_path / "missing"), "set TMPDIR"):
        arena.check()


GROWN = """
import json, sys
from pathlib import Path
from nnmpi import Config, Trainer, blas
from nnmpi.addons.swapping.placement import placements_of
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import memory

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if name in line).split()[1])

blas.tune()
how = {"memory": sys.argv[1]} if sys.argv[1:] else {}
data = "synthetic:3x32x32:10:1024"
trainer = Trainer(Config(model="cifar-cnn", data=data, batch_size=512, steps=2, **how))
a = trainer.arrangement
fixed = memory(a, 0, 512).total
plan = placements_of(a)
there = fixed - (plan.state if plan else 0)
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
