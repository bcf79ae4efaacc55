"""What training with ZeRO has to keep, on any number of ranks: functions of a Comm.

Each runs on all ranks at once. `test_zero.py` runs them on threads, `test_zero_mpi.py` over MPI.
That every stage trains as one rank with every optimizer is in the table of conformance.
"""

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.training import laws_pipeline_models as models
from helpers.training import laws_training as plain
from helpers.training.laws_pipelines import StopsAt
from helpers.training.laws_training import same_on_all
from helpers.training.pipelined import (
    CNN,
    MLP,
    MODELS,
    SCHEDULES,
    Options,
    case_for,
    contents,
    digits,
    equals,
    reference,
    run,
    some,
    tell,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.run.trainer import DivergedError

STAGES = (1, 2, 3)
RING: Options = {"allreduce": "ring", "bucket_mb": 0.005}
LAYOUTS: dict[int, list[Options]] = {
    2: [{"dp": 2}],
    3: [{"dp": 3}],
    4: [{"dp": 2, "pp": 2}],
    8: [{"dp": 4, "pp": 2}],
}


def each(comm: Comm) -> Iterator[Options]:
    """The options of every stage of ZeRO in every layout."""
    for layout, zero in itertools.product(LAYOUTS.get(comm.size, [{}]), STAGES):
        yield {**RING, **layout, "zero": zero}


# ---- N ranks = 1 rank


def every_algorithm_trains_as_one_rank(comm: Comm) -> None:
    """Uneven batches, BatchNorm, Dropout and clipping."""
    for case in MODELS.values():
        ways = (("ring", 1e-6), ("ring", None), ("p2p", 0.02), ("halving", 0.02))
        for zero, (allreduce, mb) in itertools.product(some(comm, STAGES), some(comm, ways)):
            more = {"zero": zero, "allreduce": allreduce, "bucket_mb": mb}
            equals(comm, run(comm, **case, **more), reference(**case))
        for allreduce in ("auto", "shared", "tree", "mpi", "hierarchical"):
            equals(comm, run(comm, **case, zero=1, allreduce=allreduce), reference(**case))


def who_pushes_changes_no_bits(comm: Comm) -> None:
    """Overlapped or not, from the pass itself or by a thread.

    The cut is given: a measured one moves from run to run, and with it the bounds of the buckets,
    and so the order in which four ranks sum.
    """
    ways: tuple[Options, ...] = ({"overlap": False}, {"progress": "poll"}, {"progress": "thread"})
    for options in each(comm):
        cut = "5" if "pp" in options else None
        one = {**CNN, **options, "cut": cut}
        found = {run(comm, **one, **way).done["parameters_sha256"] for way in ways}
        assert len(found) == 1


def micro_batches_train_as_on_one_rank(comm: Comm) -> None:
    """Also one for each sample: ranks have none in some."""
    for case, m in itertools.product(MODELS.values(), some(comm, (3, 24))):
        for options in each(comm):
            got = run(comm, **case, **options, micro_batches=m)
            equals(comm, got, reference(**case, micro_batches=m))


def ranks_without_samples_join(comm: Comm) -> None:
    for options in each(comm):
        for case in ({**plain.IRIS, "batch_size": 1}, {**plain.DIGITS, "batch_size": 2}):
            if "pp" not in options:
                got = plain.train(comm, **case, **options)
                plain.equals(comm, got, plain.reference(**case))


def every_schedule_trains_as_one_rank(comm: Comm) -> None:
    for options in each(comm):
        for schedule in some(comm, SCHEDULES):
            for recompute in (False, True) if schedule in ("1f1b", "zb-h1") else (False,):
                case = case_for(schedule, CNN, options.get("pp", 1))
                more = {"schedule": schedule, "micro_batches": 3, "recompute": recompute}
                equals(
                    comm, run(comm, **case, **options, **more), reference(**case, micro_batches=3)
                )


# ---- models


class Tied(nn.Module):
    """Weights that several layers use, as they are, transposed, cut and detached."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(64, 24), nn.Linear(24, 24)
        self.third, self.last = nn.Linear(24, 24), nn.Linear(24, 10)
        self.third.weight = self.second.weight
        self.scale = nn.Parameter(np.ones(24, np.float32))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.first(x.reshape(len(x), 64)))
        y = nnmpi.tanh(self.third(self.second(y)))
        y = nnmpi.tanh(y @ self.first.weight[:, :24].T * (1 + self.first.bias.detach()))
        y = nnmpi.tanh(self.third(y * self.scale))
        scores: nnmpi.Tensor = self.last(y)
        return scores


class Unused(nn.Module):
    """Half of it is never used, and one part of it is not trained."""

    def __init__(self) -> None:
        self.idle, self.first, self.fixed = nn.Linear(4, 9), nn.Linear(64, 30), nn.Linear(30, 30)
        self.last, self.spare = nn.Linear(30, 10), nn.Linear(3, 3)
        for p in self.fixed.parameters():
            p.requires_grad = False

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(nnmpi.tanh(self.fixed(self.first(x.reshape(len(x), 64)))))
        return y


def unusual_models_train_as_on_one_rank(comm: Comm) -> None:
    for build, zero in itertools.product((Tied, Unused, models.Residual), STAGES):
        for m in (1, 2):
            more = {"micro_batches": m, "weight_decay": 0.1}
            got = run(comm, build, **more, allreduce="ring", bucket_mb=1e-6, zero=zero)
            equals(comm, got, _of_one_rank(build, m))
    for options in each(comm):
        for build in (models.frozen, models.spoilt):
            equals(comm, run(comm, build, **options, micro_batches=3), _one(build))


@functools.cache
def _of_one_rank(build: Callable[[], nn.Module], m: int):  # type: ignore[no-untyped-def]
    return run(comm_self(), build, micro_batches=m, weight_decay=0.1)


@functools.cache
def _one(build: Callable[[], nn.Module]):  # type: ignore[no-untyped-def]
    return run(comm_self(), build, micro_batches=3)


class Mixed(nn.Module):
    """One operation takes parameters of two layers."""

    def __init__(self) -> None:
        self.first, self.last = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        both = nnmpi.concatenate([self.first.bias, self.last.bias])
        y: nnmpi.Tensor = self.last(self.first(x.reshape(len(x), 64)))
        return y + both.sum()


def an_operation_on_two_layers_is_refused(comm: Comm) -> None:
    """Since there is memory for one of them at a time."""
    if comm.size == 1:
        return
    wanted = run(comm_self(), Mixed)
    equals(comm, run(comm, Mixed, zero=2, **RING), wanted)
    equals(comm, run(comm, Mixed, zero=3, allreduce="ring", bucket_mb=None), wanted)
    with pytest.raises(ValueError, match=r"one operation uses .*bias and a parameter of another"):
        run(comm, Mixed, zero=3, allreduce="ring", bucket_mb=1e-6)


# ---- files, checks, the end of a run


def verify_finds_no_difference(comm: Comm) -> None:
    for options in each(comm) if comm.size > 1 else ():
        for dtype, clip_norm in (("float64", None), ("float32", 0.3)):
            more = {"dtype": dtype, "clip_norm": clip_norm, "micro_batches": 3, "steps": 6}
            got = run(comm, **case_for("1f1b", CNN, 2), **options, **more, verify=True)
            steps = [e for e in got.events if e["event"] == "verify"]
            assert [e["step"] for e in steps] == [1, 2, 3, 4, 5, 6]
            assert all(e["replicas_equal"] for e in steps)


def what_one_stage_saves_another_loads(comm: Comm) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for options in each(comm):
            path = tell(comm, str(Path(folder) / f"{options['zero']}.safetensors"))
            got = run(comm, **CNN, **options, micro_batches=2, save=path)
            comm.barrier()
            found = nnmpi.load(path)
            assert found.keys() == got.state.keys()
            for name, array in got.state.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)
            own = {"pp": 1, "dp": 1}
            for where, loads in ((comm_self(), own), *((comm, more) for more in each(comm))):
                config = Config(**CNN, **loads, dtype="float64", load=path, seed=5)
                trainer = Trainer(config, None, digits(), where)
                assert trainer.strategy.entries.sha256() == got.done["parameters_sha256"]
                for name, array in contents(trainer).items():
                    np.testing.assert_array_equal(array, found[name], err_msg=name, strict=True)
                trainer.close()
            comm.barrier()


def all_stop_when_one_wants_to(comm: Comm) -> None:
    for options in each(comm):
        config = Config(**case_for("1f1b", MLP, 2), **options, batch_size=20)
        trainer = Trainer(config, None, digits(), comm)
        event = trainer.fit(StopsAt(trainer, comm.rank == comm.size - 1))
        assert event["event"] == "stopped"
        assert event["steps"] == (2 if comm.size == 1 else 3)
        assert same_on_all(comm, f"{event['steps']} {event['parameters_sha256']}")


def a_loss_that_is_no_number_ends_all_ranks_alike(comm: Comm) -> None:
    for options in each(comm):
        case = {**case_for("1f1b", MLP, 2), "lr": 1e30, "clip_norm": None}
        with pytest.raises(DivergedError) as ended:
            run(comm, **case, **options, dtype="float32")
        assert same_on_all(comm, str(ended.value))


LAWS: list[Callable[[Comm], None]] = [
    every_algorithm_trains_as_one_rank,
    who_pushes_changes_no_bits,
    micro_batches_train_as_on_one_rank,
    ranks_without_samples_join,
    every_schedule_trains_as_one_rank,
    unusual_models_train_as_on_one_rank,
    an_operation_on_two_layers_is_refused,
    verify_finds_no_difference,
    what_one_stage_saves_another_loads,
    all_stop_when_one_wants_to,
    a_loss_that_is_no_number_ends_all_ranks_alike,
]
