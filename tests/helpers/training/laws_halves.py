"""Training in 16 bits is that of one rank, within the rounding of the type."""

import numpy as np
from helpers.once import by_first
from helpers.training.first_order import error_and_bound
from helpers.training.laws_language import POSITIONS, UNEVEN, one_rank, trained
from helpers.training.pipelined import Options, Ran, reference, run, same_on_all

from nnmpi.comm import Comm, comm_self

BOUNDS = {"float16": 1e-2, "bfloat16": 3e-2}
"""Of losses, relative to the largest of the run, after ten steps."""


def trains_as_one_rank(layout: Options, case: Options, comm: Comm) -> None:
    """Losses within the bound, as many skipped steps; copies, of masters too, have equal bits."""
    got, wanted = run(comm, **case, **layout), reference(comm, **case)
    near(got, wanted, BOUNDS[case["dtype"]])
    assert same_on_all(comm, got.done["parameters_sha256"])
    assert all(a.dtype == "float32" for a in got.state.values() if a.dtype.kind == "f")


OF_LAYOUT = {"dp", "cp", "pp", "tp", "zero", "order", "layout", "sequence_parallel", "schedule"}
OF_LAYOUT |= {"cut", "recompute", "allreduce", "bucket_mb"}


def of_one_rank(case: Options) -> Options:
    """What is trained, without the layout."""
    return {name: value for name, value in case.items() if name not in OF_LAYOUT}


def case_trains_as_one_rank(case: Options, comm: Comm) -> None:
    """A row of another family, as it is given, with "dtype"."""
    got, alone = run(comm, **case), of_one_rank(case)
    near(got, by_first(comm, lambda: run(comm_self(), **alone)), BOUNDS[case["dtype"]])
    assert same_on_all(comm, got.done["parameters_sha256"])


def first_loss_is_near_float64(case: Options) -> None:
    """On one rank, before roundings of steps add up: within the bound of first order."""
    one_step = {**of_one_rank(case), "micro_batches": 1}
    dtype = one_step.pop("dtype")
    one_step.pop("steps", None)
    error, bound = error_and_bound(dtype, {"batch_size": 24, **one_step})
    assert error <= bound


def language_trains_as_one_rank(layout: Options, dtype: str, model: str, comm: Comm) -> None:
    positions = UNEVEN if "cp" in layout else POSITIONS
    wanted = by_first(comm, lambda: one_rank(model, 1, positions, dtype))
    got = trained(model, comm, positions, dtype=dtype, **layout)
    near(got, wanted, BOUNDS[dtype])
    assert same_on_all(comm, got.done["parameters_sha256"])


def near(got: Ran, wanted: Ran, bound: float) -> None:
    scale = max(wanted.losses)
    np.testing.assert_allclose(got.losses, wanted.losses, rtol=0, atol=bound * scale)
    for ours, theirs in zip(got.events[1:], wanted.events[1:], strict=True):
        for name in ("event", "steps", "skipped_steps", "loss_scale"):
            assert ours.get(name) == theirs.get(name), name
