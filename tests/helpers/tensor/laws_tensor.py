"""What training with sharded layers has to keep, on any number of ranks: functions of a Comm.

`test_tensor.py` runs them on threads, `test_tensor_mpi.py` over MPI.
"""

import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.training.laws_training import same_on_all
from helpers.training.pipelined import (
    CNN,
    MLP,
    Options,
    case_for,
    contents,
    digits,
    equals,
    is_same,
    reference,
    run,
    some,
    tell,
    without_clipping,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.run.trainer import DivergedError

UNEVEN: Options = {**MLP, "model": "mlp:64-51-31-23-11"}
"""Widths that neither 2 nor 3 nor 4 divides, and one class more than there are digits."""

CASES: dict[str, Options] = {
    "sgd": UNEVEN,
    "adam": {**CNN, "optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.3},
    "adamw": {**CNN, "optimizer": "adamw", "weight_decay": 0.01},
}

LAYOUTS: dict[int, list[Options]] = {
    1: [{"tp": 1}],
    2: [{"tp": 2}],
    3: [{"tp": 3}],
    4: [{"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}],
    6: [{"dp": 3, "tp": 2}, {"dp": 2, "tp": 3}, {"pp": 3, "tp": 2}],
    8: [{"dp": 2, "pp": 2, "tp": 2}, {"dp": 4, "tp": 2}],
}
"""By the number of ranks."""

SPLIT_PAIR: Options = {**UNEVEN, "cut": "3"}
"""Flatten, Column, ReLU | Row: the boundary is sharded, with parts of uneven widths."""


def layouts(comm: Comm) -> list[Options]:
    return LAYOUTS[comm.size]


def every_optimizer_trains_as_one_rank(comm: Comm) -> None:
    """Clipping, momentum, BatchNorm, Dropout and uneven batches and widths."""
    for case in some(comm, CASES.values()):
        for layout in layouts(comm):
            for m in (1, 3):
                got = run(comm, **case, **layout, micro_batches=m)
                equals(comm, got, reference(**case, micro_batches=m))


def sums_over_dp_give_copies_equal_bits(comm: Comm) -> None:
    """A bias behind a sum over tp is added up over dp by each of its ranks alone."""
    case = {**UNEVEN, "model": "mlp:64-7-301-11", "optimizer": "adam", "clip_norm": None}
    for layout in layouts(comm):
        ways = product((0, 1, 2, 3), ("shared", "ring", "halving", "p2p"))
        for zero, allreduce in some(comm, ways):
            if zero < 2 or (allreduce != "shared" and layout.get("dp", 1) > 1):
                how = {"allreduce": allreduce, "zero": zero, "bucket_mb": 0.005}
                equals(comm, run(comm, **{**case, **layout, **how}), reference(**case))


def pipelines_train_as_one_rank(comm: Comm) -> None:
    """With every schedule that fits, and a cut between a column and its row."""
    for layout in layouts(comm):
        pp = layout.get("pp", 1)
        for schedule in some(comm, ("gpipe", "1f1b", "interleaved", "zb-h1")) if pp > 1 else ():
            own = case_for(schedule, UNEVEN, pp)
            two_stages = [CNN, SPLIT_PAIR] if pp == 2 and schedule != "interleaved" else []
            for case in (own, *two_stages):
                options = {"schedule": schedule, "micro_batches": 4}
                got = run(comm, **case, **layout, **options)
                one = {k: v for k, v in case.items() if k != "cut"}
                equals(comm, got, reference(**one, micro_batches=4))


def recompute_changes_no_bits(comm: Comm) -> None:
    """By a named all-reduce: where /dev/shm has no room, `auto` may take another in each run."""
    for case in some(comm, (CNN, without_clipping(UNEVEN))):
        for layout in layouts(comm):
            options = {**case, **layout, "micro_batches": 3, "allreduce": "ring"}
            is_same(run(comm, **options, recompute=True), run(comm, **options))


def verify_finds_no_difference(comm: Comm) -> None:
    for layout in layouts(comm) if comm.size > 1 else ():
        for dtype in ("float64", "float32"):
            options = {**CASES["adam"], **layout, "micro_batches": 2, "steps": 6}
            got = run(comm, **options, dtype=dtype, verify=True)
            steps = [e for e in got.events if e["event"] == "verify"]
            assert [e["step"] for e in steps] == [1, 2, 3, 4, 5, 6]
            assert all(e["replicas_equal"] for e in steps)


def initial_values_and_files_do_not_depend_on_tp(comm: Comm) -> None:
    """What one layout saves another loads, and each draws what one rank draws."""
    with tempfile.TemporaryDirectory() as folder:
        path = tell(comm, str(Path(folder) / "m.safetensors"))
        for case in (UNEVEN, CNN):
            got = run(comm, **case, **layouts(comm)[0], save=path)
            comm.barrier()
            found = nnmpi.load(path)
            assert found.keys() == got.state.keys()
            for name, array in got.state.items():
                np.testing.assert_array_equal(array, found[name], err_msg=name, strict=True)
            everywhere = ((comm_self(), {}), *((comm, layout) for layout in layouts(comm)))
            drawn = set()
            for where, layout in everywhere:
                config = Config(**case, **layout, dtype="float64", load=path, seed=5)
                trainer = Trainer(config, None, digits(), where)
                assert trainer.strategy.entries.sha256() == got.done["parameters_sha256"]
                for name, array in contents(trainer).items():
                    np.testing.assert_array_equal(array, found[name], err_msg=name, strict=True)
                trainer.close()
                config = Config(**case, **layout, dtype="float64", seed=5)
                trainer = Trainer(config, None, digits(), where)
                drawn.add(trainer.strategy.entries.sha256())
                trainer.close()
            assert len(drawn) == 1
            comm.barrier()


MISTAKES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "too narrow": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 10)),
        r"layer 1 \(Linear\): 1 channel cannot be divided among \d ranks",
    ),
    "a size that does not fit": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Linear(30, 10)),
        "and data .* do not fit",
    ),
    "too few scores": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
        r"scores of shape \(9,\) for a sample, and there are 10 classes",
    ),
    "other images": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)),
        "and data .* do not fit",
    ),
}


def mistakes_give_one_line_on_all_ranks(comm: Comm) -> None:
    for layout in layouts(comm):
        if layout["tp"] > 1 and "pp" not in layout:  # which refuses some of them itself
            for build, message in MISTAKES.values():
                config = Config(**layout, batch_size=24)
                with pytest.raises(Exception, match=message) as raised:
                    Trainer(config, build, digits(), comm)
                assert "\n" not in str(raised.value)


def a_loss_that_is_no_number_ends_all_ranks_alike(comm: Comm) -> None:
    for layout in layouts(comm):
        with pytest.raises(DivergedError) as ended:
            run(comm, **{**MLP, "lr": 1e30, "clip_norm": None}, **layout, dtype="float32")
        assert same_on_all(comm, str(ended.value))


LAWS: list[Callable[[Comm], None]] = [
    every_optimizer_trains_as_one_rank,
    sums_over_dp_give_copies_equal_bits,
    pipelines_train_as_one_rank,
    recompute_changes_no_bits,
    verify_finds_no_difference,
    initial_values_and_files_do_not_depend_on_tp,
    mistakes_give_one_line_on_all_ranks,
    a_loss_that_is_no_number_ends_all_ranks_alike,
]
