"""The first pass: two samples of zeros go through the model, stage by stage, and back.

It shows whether model and data fit, in which order parameters are used, and what crosses between
stages. Each rank runs its own stages; the others wait, and learn what crosses to the next one.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import NamedTuple

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset, Inputs
from nnmpi.data.inputs import arrays, each, is_index, parts, zeros
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import only_runs_layers
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.boundary import Boundary
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.step.executor import refuse
from nnmpi.parallel.step.ports import called
from nnmpi.quoting import shown

DTYPES = ("float16", "float32", "float64")
AXES = 8  # of an array that crosses between stages, at most


class FirstPass(NamedTuple):
    """What the first pass has shown."""

    boundaries: list[Boundary]  # between stages
    parameters: list[Parameter]  # of this rank, that are trained: in the order of their use


def first_pass(
    config: Config,
    part: ModelPart,
    dataset: Dataset,
    on: Backend,
    pp: Comm,
    everyone: Comm,
    check_scores: Callable[[Tensor, str], None],
) -> FirstPass:
    """Every rank calls it; raises ValueError on all ranks if model and data do not fit.

    `check_scores` raises ValueError if the scores are none of the loss.
    """
    x = zeros(dataset.train.x, 2, config.dtype)
    what = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"
    boundaries, used = list[Boundary](), list[Parameter]()
    for s in range(part.stage_count):
        is_last = s == part.stage_count - 1

        def run(s: int = s, x: Inputs = x, is_last: bool = is_last) -> Boundary | None:
            if s not in part.stages:
                return None
            y = _run(part.stages[s], x, on, what, s if part.stage_count > 1 else None)
            if is_last:
                check_scores(y, what)
            if not any(p.requires_grad for p in part.stages[s].parameters()):
                raise ValueError(f"model {config.model} has no parameter with requires_grad")
            order = _order_of_use(part.stages[s], y)
            used.extend(order)
            return None if is_last else _boundary(y, s)

        boundary = all_or_none(everyone, run)
        if not is_last:
            boundaries.append(_on_all_ranks(pp, boundary, s % pp.size))
            x = boundaries[-1].zeros(2)
    trained = [p for p in part.parameters if p.requires_grad]
    for p in trained:
        p.grad = None
    order = dict.fromkeys(used)
    return FirstPass(boundaries, [*(p for p in trained if p not in order), *order])


def _run(stage: Module, x: Inputs, on: Backend, what: str, number: int | None) -> Tensor:
    training = stage.training
    stage.eval()
    try:
        _check_call(stage, x)
        with np.errstate(over="ignore", invalid="ignore"):
            y = called(stage, each(partial(tensor, on=on), x))
    except ValueError as error:
        where = "samples are" if not number else f"the input of stage {number} is"
        raise ValueError(f"{what}: {where} {_shapes(x)}; {error}") from None
    finally:
        stage.train(training)
    if not isinstance(y, Tensor):
        returns = "the model" if number is None else f"stage {number}"
        raise ValueError(f"{what}: {returns} must return a tensor, not a {type(y).__name__}")
    return y


def _check_call(stage: Module, x: Inputs) -> None:
    """Raises ValueError unless the module that takes the samples takes as many arguments."""
    while only_runs_layers(stage) and len(stage):
        stage = stage[0]
    given = dict.fromkeys(x, "") if isinstance(x, dict) else {}
    try:
        signature(stage.forward).bind(*([] if given else arrays(x)), **given)
    except TypeError as error:
        raise ValueError(f"{type(stage).__name__}.forward: {error}") from None


def _shapes(x: Inputs) -> str:
    """The shape of a sample of each input, and the type of indices, which explains most errors."""
    found = []
    for name, array in parts(x):
        shape = "x".join(map(str, array.shape[1:])) or "() (x[:, None] has one feature)"
        kind = f"indices ({array.dtype}) " if is_index(array) else ""
        found.append(f"{kind}of shape {shape}{f' (x{name})' if name else ''}")
    return ", ".join(found)


def _boundary(y: Tensor, number: int) -> Boundary:
    """What the output of a stage is sent as; raises ValueError unless it can be."""
    found, what = Boundary.of(y.data), f"stage {number} returns an array"
    if len(y) != 2:
        raise ValueError(
            f"{what} of shape {y.shape} for 2 samples: the first axis of what goes from stage to "
            "stage is that of samples"
        )
    if y.ndim > AXES or found.dtype not in DTYPES:
        raise ValueError(
            f"{what} of {found.dtype} with {y.ndim} axes: stages exchange one of "
            f"{', '.join(DTYPES)} with at most {AXES} axes"
        )
    return found


def _order_of_use(stage: Module, y: Tensor) -> list[Parameter]:
    """The parameters that a result was computed from, in the order of their use.

    Their gradients become final in the reverse order.
    """
    found: list[Parameter] = []
    if y.requires_grad:
        with np.errstate(over="ignore", invalid="ignore"):
            y.sum().backward(on_leaf=found.append)
    own = {*stage.parameters()}
    for leaf in found:
        if leaf not in own:
            refuse(leaf)
    return found[::-1]


def _on_all_ranks(comm: Comm, boundary: Boundary | None, owner: int) -> Boundary:
    """The boundary that its owner has found, on every rank."""
    row = np.zeros(2 + 2 * AXES, np.int64)
    if boundary is not None:
        known = [len(boundary.shape), DTYPES.index(boundary.dtype)]
        numbers = [*known, *boundary.shape, *boundary.order]
        row[: len(numbers)] = numbers
    comm.broadcast(row, owner)
    n, dtype, *rest = row.tolist()
    return Boundary(tuple(rest[:n]), tuple(rest[n : 2 * n + 1]), DTYPES[dtype])
