"""What training on any number of ranks has to keep: functions of a Comm.

Each runs on all ranks at once. `test_training.py` runs them on threads, `test_training_mpi.py`
over MPI.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.runs import parameters_sha256

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.config import ALLREDUCES
from nnmpi.parallel.checks.verify import VerifyError
from nnmpi.run.report import Event, NullReport, Report
from nnmpi.run.trainer import DivergedError

BOUND = 1e-10  # in float64, after ten steps
IRIS = {"model": "iris-mlp", "data": "iris", "batch_size": 50, "lr": 0.01}  # 120 = 50 + 50 + 20
DIGITS = {"model": "digits-cnn", "data": "digits", "batch_size": 37}
CASES: dict[str, dict[str, Any]] = {"iris-mlp": IRIS, "digits-cnn": DIGITS}
SMALL_BUCKETS = {"bucket_mb": 0.001}


class Trained(NamedTuple):
    """What came out of a run on this rank."""

    event: Event
    state: dict[str, np.ndarray]


def train(
    comm: Comm, build: Callable[[], nn.Module] | None = None, arrays: Any = None, **options: Any
) -> Trained:
    """Ten steps in float64, if nothing else is asked for."""
    config = Config(**{"steps": 10, "dtype": "float64", "epochs": 100, **options})
    trainer = Trainer(config, build, arrays, comm)
    event = trainer.fit(NullReport())
    # that of the first rank's copy; this is of the rank's own
    assert event["parameters_sha256"] == parameters_sha256(trainer.model)
    return Trained(event, trainer.model.state_dict())


@functools.cache
def one_rank(options: tuple[tuple[str, Any], ...]) -> Trained:
    """The same on one rank, once a process."""
    return train(comm_self(), **dict(options))


def reference(**options: Any) -> Trained:
    return one_rank(tuple(sorted(options.items())))


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest relative difference of two tensors of the same name."""
    assert a.keys() == b.keys()
    return max(float(abs(a[k] - b[k]).max() / max(abs(b[k]).max(), 1e-300)) for k in a)


def same_on_all(comm: Comm, text: str) -> bool:
    """Whether all ranks bring the same text."""
    own = np.frombuffer(text.encode()[:64].ljust(64), np.uint8)
    rows = np.empty((comm.size, 64), np.uint8)
    rows[comm.rank] = own
    comm.all_gather(rows)
    return bool((rows == own).all())


def equals(comm: Comm, got: Trained, wanted: Trained) -> None:
    """Parameters, buffers and metrics are those of one rank; replicas have the same bits."""
    assert distance(got.state, wanted.state) < BOUND
    assert same_on_all(comm, got.event["parameters_sha256"])
    for name in ("loss", "test_loss"):
        assert got.event[name] == pytest.approx(wanted.event[name], rel=BOUND)
    for name in ("accuracy", "steps", "epochs", "skipped_steps"):
        assert got.event[name] == wanted.event[name], name
    assert got.event["ranks"] == got.event["layout"]["dp"] == comm.size


# ---- the laws


def every_sum_trains_as_one_rank(comm: Comm) -> None:
    """Uneven batches, BatchNorm and Dropout; buckets of one parameter and one for all."""
    for case in CASES.values():
        for allreduce in ALLREDUCES:
            for more in ({}, SMALL_BUCKETS) if allreduce in ("ring", "shared") else ({},):
                equals(comm, train(comm, **case, allreduce=allreduce, **more), reference(**case))


def every_optimizer_trains_as_one_rank(comm: Comm) -> None:
    for optimizer in ("sgd", "adam", "adamw"):
        case = {**DIGITS, "optimizer": optimizer, "weight_decay": 0.01, "clip_norm": 0.3}
        for allreduce in ("shared", "ring"):
            equals(comm, train(comm, **case, allreduce=allreduce), reference(**case))


def micro_batches_train_as_on_one_rank(comm: Comm) -> None:
    """Also one for each sample: most ranks then have none, and the last batch has fewer."""
    for case in (
        {**DIGITS, "batch_size": 37, "micro_batches": 2},
        {**DIGITS, "batch_size": 10, "micro_batches": 10, "steps": 3},
        {**IRIS, "batch_size": 25, "micro_batches": 22},
    ):
        for allreduce in ("shared", "ring"):
            equals(comm, train(comm, **case, allreduce=allreduce), reference(**case))


def ranks_without_samples_join(comm: Comm) -> None:
    for case in ({**IRIS, "batch_size": 3}, {**DIGITS, "batch_size": 2}, {**IRIS, "batch_size": 1}):
        for allreduce in ("shared", "halving"):
            equals(comm, train(comm, **case, allreduce=allreduce), reference(**case))


def who_pushes_changes_no_bits(comm: Comm) -> None:
    """Overlapped or not, from the backward pass or by a thread."""
    ways = ({"overlap": False}, {"progress": "poll"}, {"progress": "thread"})
    for allreduce in ("ring", "shared"):
        case = {**DIGITS, **SMALL_BUCKETS, "allreduce": allreduce}
        hashes = {train(comm, **case, **way).event["parameters_sha256"] for way in ways}
        assert len(hashes) == 1


def clouds(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, 4)), np.arange(n) % 3


class OneRoot(nn.Module):
    """One sample of the data has a finite loss, and a gradient that is no number."""

    def __init__(self) -> None:
        self.scale, self.last = nn.Parameter(np.ones(1, np.float32)), nn.Linear(4, 3)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(x)
        far = nnmpi.absolute(x[:, :1] - SPOILT)
        return y + nnmpi.sqrt(far * self.scale)


def _spoilt() -> float:
    """What the standardiser makes of the first feature of the first sample for training."""
    trainer = Trainer(Config(dtype="float64"), lambda: nn.Linear(4, 3), clouds(), comm_self())
    return float(trainer.train.gather(np.array([0])).x[0, 0])


SPOILT = _spoilt()


def a_step_that_is_not_finite_is_left_out_by_all(comm: Comm) -> None:
    """One sample of one rank spoils one step of each epoch; the optimizer does not count it."""
    options: dict[str, Any] = {"steps": None, "epochs": 3, "batch_size": 8}
    wanted = train(comm_self(), OneRoot, clouds(), **options)
    assert wanted.event["skipped_steps"] == 3
    assert wanted.event["steps"] > 6
    for allreduce in ("shared", "ring"):
        got = train(comm, OneRoot, clouds(), **options, allreduce=allreduce)
        equals(comm, got, wanted)


class Unused(nn.Module):
    """Half of it is never used, and one part of it is not trained."""

    def __init__(self) -> None:
        self.idle, self.first, self.fixed = nn.Linear(4, 9), nn.Linear(4, 5), nn.Linear(5, 5)
        self.last, self.spare = nn.Linear(5, 3), nn.Linear(3, 3)
        for p in self.fixed.parameters():
            p.requires_grad = False

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(nnmpi.tanh(self.fixed(self.first(x))))
        return y


def unused_and_frozen_parameters_stay(comm: Comm) -> None:
    options: dict[str, Any] = {"batch_size": 7, "weight_decay": 0.1, **SMALL_BUCKETS}
    wanted = train(comm_self(), Unused, clouds(), **options)
    fresh = Unused()
    fresh.to("float64")
    for allreduce in ("shared", "ring"):
        got = train(comm, Unused, clouds(), **options, allreduce=allreduce)
        equals(comm, got, wanted)
        for name in ("idle.weight", "spare.bias", "fixed.weight"):
            np.testing.assert_array_equal(got.state[name], fresh.state_dict()[name])


def what_one_layout_saves_another_loads(comm: Comm) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mine = Path(folder) / "mine.safetensors"
        words = np.zeros(200, np.uint8)
        words[: len(str(mine))] = np.frombuffer(str(mine).encode(), np.uint8)
        comm.broadcast(words)  # rank 0's folder, from which all load
        path = words.tobytes().rstrip(b"\0").decode()
        got = train(comm, **DIGITS, save=path)
        comm.barrier()
        loaded = nnmpi.load(path)
        assert loaded.keys() == got.state.keys()
        for name, array in got.state.items():
            np.testing.assert_array_equal(loaded[name], array, err_msg=name)
        again = train(comm, **DIGITS, load=path, seed=5)
        equals(comm, again, train(comm_self(), **DIGITS, load=path, seed=5))
        comm.barrier()


class StopsAt(Report):
    """One rank wants to stop after its second step."""

    def __init__(self, trainer: Trainer, wanting: bool) -> None:
        super().__init__(quiet=True)
        self._trainer, self._wanting = trainer, wanting

    def event(self, event: Event) -> None: ...

    def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        if step == 2 and self._wanting:
            self._trainer.stop()


def all_stop_when_one_wants_to(comm: Comm) -> None:
    """In the middle of an epoch of 5 steps: the ranks agree in the next step."""
    for options in ({"allreduce": "shared"}, {"allreduce": "ring"}, {"reproducible": True}):
        trainer = Trainer(Config(**IRIS | {"batch_size": 25}, **options), comm=comm)
        event = trainer.fit(StopsAt(trainer, comm.rank == comm.size - 1))
        assert event["event"] == "stopped"
        assert event["steps"] == (2 if comm.size == 1 else 3)  # one rank need not ask another
        assert same_on_all(comm, f"{event['steps']} {event['parameters_sha256']}")


def a_loss_that_is_no_number_ends_all_ranks_alike(comm: Comm) -> None:
    with pytest.raises(DivergedError) as ended:
        train(comm, **{**IRIS, "lr": 1e30, "dtype": "float32"})
    assert same_on_all(comm, str(ended.value))


class Lost(nn.Module):
    """Two of three classes have no chance: an infinite loss, of which all gradients are finite."""

    def __init__(self) -> None:
        self.last = nn.Linear(4, 3)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(x)
        return y + np.array([0, -np.inf, -np.inf], y.dtype)


def nothing_moves(trainer: Trainer) -> None:
    """Its first step ends the run, and is not made."""
    before = trainer.model.state_dict()
    with pytest.raises(DivergedError, match="loss became inf"):
        trainer.fit(NullReport())
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def a_loss_that_is_no_number_moves_nothing(comm: Comm) -> None:
    for options in ({"allreduce": "shared"}, {"allreduce": "ring"}, {"reproducible": True}):
        nothing_moves(Trainer(Config(batch_size=32, **options), Lost, clouds(), comm))


class Listens(Report):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


def verify_finds_no_difference(comm: Comm) -> None:
    for allreduce in ("shared", "ring") if comm.size > 1 else ():
        config = Config(**DIGITS, steps=4, dtype="float64", verify=True, allreduce=allreduce)
        heard = Listens()
        done = Trainer(config, comm=comm).fit(heard)
        steps = [e for e in heard.events if e["event"] == "verify"]
        assert [e["step"] for e in steps] == [1, 2, 3, 4]
        assert all(e["replicas_equal"] for e in steps)
        largest = done["largest_differences"]
        for subject in ("loss", "gradients", "parameters"):
            measured = f"{subject}_relative"
            assert largest[measured] == max(e[measured] for e in steps) < BOUND


def verify_finds_what_differs(comm: Comm) -> None:
    """A model that sees how many samples it is given: other numbers of them are other models."""

    class Partial(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 3)

        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            y: nnmpi.Tensor = self.inner(x) * (1 + 1e-6 * x.shape[0])
            return y

    config = Config(steps=9, dtype="float64", verify=True, batch_size=8)
    if comm.size == 1:
        with pytest.raises(ValueError, match="verify with 1 rank: there is nothing to compare"):
            Trainer(config, Partial, clouds(), comm)
        return
    trainer = Trainer(config, Partial, clouds(), comm)
    with pytest.raises(VerifyError, match="differ from those of one rank by") as ended:
        trainer.fit(NullReport())
    assert same_on_all(comm, str(ended.value))


LAWS: list[Callable[[Comm], None]] = [
    every_sum_trains_as_one_rank,
    every_optimizer_trains_as_one_rank,
    micro_batches_train_as_on_one_rank,
    ranks_without_samples_join,
    who_pushes_changes_no_bits,
    a_step_that_is_not_finite_is_left_out_by_all,
    unused_and_frozen_parameters_stay,
    what_one_layout_saves_another_loads,
    all_stop_when_one_wants_to,
    a_loss_that_is_no_number_ends_all_ranks_alike,
    a_loss_that_is_no_number_moves_nothing,
    verify_finds_no_difference,
    verify_finds_what_differs,
]
