"""The first pass: two samples of zeros go through the model, stage by stage.

It shows whether model and data fit, and of a model that is not cut, in which order parameters are
used. Each rank runs its own stages; the others wait. Where ranks have parts of what crosses between
stages (tp), all learn of which shape.
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
from nnmpi.data.inputs import Structure, arrays, each, is_index, parts, zeros
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import only_runs_layers
from nnmpi.nn.tracing import order_of, trace
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.boundary import Boundary, resized
from nnmpi.parallel.model.boundary import zeros as zeros_of
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.step.executor import refuse
from nnmpi.parallel.step.ports import called
from nnmpi.quoting import shown


class FirstPass(NamedTuple):
    """What the first pass has shown."""

    boundaries: list[Boundary]  # between stages, as they are on this rank
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

        def run(s: int = s, x: Inputs = x, is_last: bool = is_last) -> Structure[Tensor] | None:
            if s not in part.stages:
                return None
            y = _run(part.stages[s], x, on, what, s)
            scores = _scores(y, what) if is_last else None
            if scores is not None:
                check_scores(scores, what)
            if not any(p.requires_grad for p in part.stages[s].parameters()):
                raise ValueError(f"model {config.model} has no parameter with requires_grad")
            if scores is not None and part.stage_count == 1:
                used.extend(_order_of_use(part.stages[s], scores))
            return y

        y = all_or_none(everyone, run)
        if not is_last:
            found = part.boundaries[s]
            boundaries.append(found if config.tp == 1 else _local(pp, found, y, s % pp.size))
            crossing = tuple(zeros_of(edge, 2) for edge in boundaries[-1])
            x = crossing if len(crossing) != 1 else crossing[0]
    if part.stage_count > 1:
        return FirstPass(boundaries, list(part.order))
    trained = [p for p in part.parameters if p.requires_grad]
    for p in trained:
        p.grad = None
    order = dict.fromkeys(used)
    return FirstPass(boundaries, [*(p for p in trained if p not in order), *order])


def traced(config: Config, dataset: Dataset, model: Module) -> Graph:
    """The graph of the model; raises ValueError if model and data do not fit."""
    what = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"

    def samples(n: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        x = each(tensor, zeros(dataset.train.x, n, config.dtype))
        return ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})

    x = zeros(dataset.train.x, 2, config.dtype)
    try:
        _check_call(model, x)
        return trace(model, samples, config.dtype)
    except ValueError as error:
        raise ValueError(f"{what}: samples are {_shapes(x)}; {error}") from None


def _run(stage: Module, x: Inputs, on: Backend, what: str, number: int) -> Structure[Tensor]:
    training = stage.training
    stage.eval()
    try:
        if not number:
            _check_call(stage, x)
        with np.errstate(over="ignore", invalid="ignore"):
            y: Structure[Tensor] = called(stage, each(partial(tensor, on=on), x))
    except ValueError as error:
        where = "samples are" if not number else f"the input of stage {number} is"
        raise ValueError(f"{what}: {where} {_shapes(x)}; {error}") from None
    finally:
        stage.train(training)
    return y


def _scores(y: Structure[Tensor], what: str) -> Tensor:
    """What the model returns."""
    if not isinstance(y, Tensor):
        raise ValueError(f"{what}: the model must return a tensor, not a {type(y).__name__}")
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


def _local(comm: Comm, boundary: Boundary, y: Structure[Tensor] | None, owner: int) -> Boundary:
    """The boundary with the shapes and orders that its owner has found, on every rank."""
    numbers = sum(len(edge.axes) for edge in boundary)
    row = np.zeros((2, numbers), np.int64)
    if y is not None:
        shapes = [
            n // 2 if axis.of_samples else n
            for (_, t), edge in zip(parts(y), boundary, strict=True)
            for axis, n in zip(edge.axes, t.shape, strict=True)
        ]
        orders = [k for _, t in parts(y) for k in order_of(t.data)]
        row[:] = shapes, orders
    comm.broadcast(row, owner)
    found, start = [], 0
    for edge in boundary:
        stop = start + len(edge.axes)
        lengths, order = row[:, start:stop].tolist()
        found.append(resized(edge, lengths)._replace(order=tuple(order)))
        start = stop
    return tuple(found)
