"""Makes optimizer and learning rate schedule, by config or a user's function."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import Optimizer, schedule
from nnmpi.optim.of_options import of_config
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import gather_objects
from nnmpi.run.callbacks import plain

Named: TypeAlias = Sequence[tuple[str, Parameter]]
"""Parameters with their paths in the whole model."""

MakeOptimizer: TypeAlias = Callable[[Named], Optimizer]

OptimizerOf: TypeAlias = Callable[[Sequence[Parameter]], Optimizer]


def optimizer_of(config: Config, function: MakeOptimizer | None, comm: Comm) -> OptimizerOf:
    """Returns a function that makes the optimizer of what this rank updates: by the config, or by
    the user's `function`, which every rank calls, since their optimizers are compared."""
    if function is None:
        return partial(of_config, config)
    return partial(_agreed, _checked("optimizer", function), comm)


def schedule_of(
    config: Config, function: schedule.LRSchedule | None, steps: int
) -> schedule.LRSchedule:
    """Returns the learning rate schedule, a function from a step to a factor of the learning rates:
    the user's `function`, or the one that the config names, for a run of `steps` steps."""
    if function is None:
        return schedule.parse(config.lr_schedule, steps)
    return partial(_factor, _checked("schedule", function))


def _checked(name: str, function: Any) -> Any:
    if not callable(function) or isinstance(function, type | Optimizer):
        raise ValueError(f"{name} is {function!r:.60}: give a function (see docs/optimizers.md)")
    return function


def _agreed(function: MakeOptimizer, comm: Comm, updated: Sequence[Parameter]) -> Optimizer:
    """Returns the optimizer that a user's function makes of this rank's (path, parameter) pairs.
    Every rank calls it; raises ValueError on all unless each has exactly these parameters, in
    groups whose options are equal on all ranks."""
    problem, groups, cause = "", [], None
    named = [(p.place.path, p) for p in updated]
    try:
        optimizer = function([*named])
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"returned a {type(optimizer).__name__}: return one of nnmpi.optim")
        if optimizer.has_own_step:
            raise ValueError(
                f"returned a {type(optimizer).__name__}, whose step is its own and updates whole "
                "parameters: define _update(x, group) instead (see docs/optimizers.md)"
            )
        lacks = {p for _, p in named} ^ {*optimizer.parameters}
        if lacks:
            path = next((path for path, p in named if p in lacks), "a parameter of another list")
            raise ValueError(
                f"must have exactly the parameters that it gets, and {path} is not in both lists; "
                "to freeze one, set its requires_grad in `build`"
            )
        groups = [plain(group) for group in optimizer.param_groups]
    except Exception as error:  # perhaps on this rank only: exchange it, so that all ranks raise
        is_text, cause = isinstance(error, ValueError), error
        problem = str(error) if is_text else f"raised {type(error).__name__}: {error}"
    of_ranks = gather_objects(comm, (problem, repr(groups)))
    for rank, (text, theirs) in enumerate(of_ranks):
        if text:
            raise ValueError(f"optimizer of the Trainer: {text}") from cause
        if theirs != of_ranks[0][1]:
            raise ValueError(
                f"optimizer of the Trainer: rank {rank} has other groups than rank 0; return the "
                "same groups on all ranks, empty ones where a rank has none of the parameters"
            )
    return optimizer


def _factor(function: Callable[[int], Any], step: int) -> float:
    factor, number = function(step), math.nan
    with suppress(TypeError, ValueError):
        number = float(factor)
    if not 0 <= number < math.inf:
        raise ValueError(
            f"schedule of the Trainer returned {factor!r:.60} for step {step}: return a number of "
            "at least 0, which multiplies the learning rates"
        )
    return number
