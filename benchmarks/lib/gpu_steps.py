"""The training steps that are counted for a GPU: loops of one's own, and steps of a Trainer."""

from typing import Any, NamedTuple

from lib.models import CASES
from lib.timing import Step
from lib.workloads import endless, nnmpi_step

LOOPS = (
    *("W1", "W2", "W3", "W4", "W5", "gpt-128", "gpt-384", "lstm"),
    *("W2-1024", "W4-1024", "R-1024"),
)
"""Loops of one's own on these workloads."""


class Run(NamedTuple):
    """What a Trainer is given."""

    model: str
    data: str
    batch_size: int


TRAINERS = {
    "Trainer W1": Run("mnist-cnn", "synthetic:1x28x28:10:6400", 64),
    "Trainer gpt:12x12x768": Run("gpt:12x12x768", "text", 8),
}

STEPS = (*LOOPS, *TRAINERS)

MOST = 90
"""Steps that can be counted or timed: at the end of an epoch, a Trainer makes one more at once."""

WARM_UP = 6
"""Steps before the first one that is timed: they compile, record, capture and compare."""

FORMS = ("written", "compiled")
"""As written, and by nnmpi.compile; of a Trainer by autograd, and as a graph."""


def step_of(case: str, form: str) -> Step:
    """One of STEPS on a GPU, in one of the FORMS, in float32."""
    is_compiled = form == "compiled"
    if case in TRAINERS:
        return trainer_step(TRAINERS[case], is_compiled)
    return nnmpi_step(CASES[case], device="cuda", compiled=is_compiled)


def trainer_step(run: Run, is_compiled: bool, dtype: str = "float32", comm: Any = None) -> Step:
    """A step of a Trainer on the ranks of a Comm, by default on one."""
    import nnmpi
    from nnmpi.comm import comm_self

    options = {**run._asdict(), "dtype": dtype, "compile": is_compiled}
    config = nnmpi.Config(**options, device="cuda", quiet=True)
    steps = endless(nnmpi.Trainer(config, comm=comm or comm_self()))
    return lambda: next(steps)
