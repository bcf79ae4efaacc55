"""Makes the loss and the metrics of a Trainer, and checks that data and model fit them."""

import copy
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

from nnmpi.arrays import dtypes
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Inputs
from nnmpi.data.inputs import arrays, each, is_index, parts, zeros
from nnmpi.metrics import Metric
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.losses import ClassLoss, Loss
from nnmpi.nn.sequential import only_runs_layers
from nnmpi.nn.tracing import trace
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.step.objective import Criterion, Objective, SumOfMean, widened
from nnmpi.parallel.tensor.sharding import Sharding

LOOKED_AT = 1000  # labels, of which a message says what they look like

REMEDY = "take another model or other data, or reshape samples in the model's forward"
"""The advice of a message on a model and data that do not fit."""


class MisfitError(ValueError):
    """Raised because the model does not return scores that fit the loss and the labels."""


def criterion(loss: Any) -> Criterion:
    """Converts a user's loss to one that sums over samples; None is cross-entropy."""
    if loss is None:
        return CrossEntropyLoss(reduction="sum")
    if isinstance(loss, Loss):
        if loss.reduction not in ("mean", "batchmean"):
            raise ValueError(
                f"loss {type(loss).__name__} has reduction {loss.reduction!r}: leave it out, since "
                "the Trainer divides by the samples of the whole batch"
            )
        summed = copy.copy(loss)
        summed.reduction = "sum"
        return summed
    if not callable(loss) or isinstance(loss, type):
        raise ValueError(
            f"loss {loss!r:.60} is not a loss: give an object such as nnmpi.nn.MSELoss(), or a "
            "function of scores and labels that returns the mean over the samples"
        )
    return SumOfMean(loss)


def checked(loss: Any, metrics: Mapping[str, Metric]) -> Criterion:
    """Returns the loss as one that sums over samples; raises ValueError if it is not a loss, or if
    the metrics are not functions with names."""
    known = criterion(loss)
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"metrics is a {type(metrics).__name__}: give a dict of functions by name, such as "
            "{'error': function}"
        )
    for name, metric in metrics.items():
        if not callable(metric):
            raise ValueError(
                f"metric {name} is {metric!r:.60}: give a function of scores and labels that "
                "returns a sum over the samples and their number"
            )
    return known


def described(loss: Criterion) -> str:
    """Returns a loss and its options as text, which resumed runs compare."""
    if not isinstance(loss, Loss):
        return repr(loss)
    public = {
        k: v for k, v in vars(loss).items() if k[0] != "_" and k not in ("passes", "reduction")
    }
    lists = ((k, v.tolist() if isinstance(v, np.ndarray) else v) for k, v in public.items())
    return f"{type(loss).__name__}({', '.join(f'{k}={v}' for k, v in lists)})"


def check_labels(loss: Criterion, data: Dataset) -> None:
    """Raises ValueError for a loss of classes on targets of a regression."""
    y = data.train.y
    if isinstance(loss, ClassLoss) and y.dtype.kind not in "iu":
        raise ValueError(
            f"{data.name}: y holds {y.dtype} of shape {y.shape}, and {type(loss).__name__} takes "
            "integer labels: give y.argmax(1) for one-hot labels, y.astype('int64') for whole "
            "numbers, or Trainer(loss=nnmpi.nn.MSELoss()) for a regression"
        )


def objective(
    loss: Criterion, metrics: Mapping[str, Metric], sharding: Sharding, axis: Mapping[str, Comm]
) -> Objective:
    """Returns the loss and the metrics as functions of the scores that this rank computes, which
    may be only some of the classes or positions. `axis` has the Comms by axis of the mesh."""
    counts_samples = not any(axis[name].rank for name in sharding.positions)
    if sharding.output is None:
        return Objective(loss, metrics, counts_samples=counts_samples)
    from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss  # tp divides the classes

    assert isinstance(loss, CrossEntropyLoss)
    sharded = ShardedCrossEntropyLoss(
        axis["tp"],
        sharding.output,
        loss.weight,
        ignore_index=loss.ignore_index,
        reduction="sum",
        label_smoothing=loss.label_smoothing,
    )
    return Objective(sharded, metrics, sharded.whole, counts_samples)


def check_scores(loss: Criterion, data: Dataset, scores: Any, label: str) -> None:
    """Raises MisfitError unless `scores`, the model's output for two samples, have a shape that
    fits the labels of the data set. `label` is the beginning of the error message."""
    if not isinstance(scores, Tensor):
        name = type(scores).__name__
        raise MisfitError(f"{label}: the model must return a tensor, not a {name}")
    if isinstance(loss, ClassLoss):
        _check_classes(loss, data, scores.shape[1:], label)
        return
    targets = np.repeat(data.train.y[:1], 2, axis=0)
    try:
        with np.errstate(all="ignore"):
            loss(scores, targets)
    except ValueError as error:
        raise MisfitError(
            f"{label}: the loss refuses scores of shape {scores.shape} and targets of "
            f"{targets.shape}: {error}"
        ) from error


def _check_classes(loss: ClassLoss, data: Dataset, shape: tuple[int, ...], label: str) -> None:
    y = data.train.y
    if not shape or shape[1:] != y.shape[1:] or shape[0] < data.classes:
        raise MisfitError(
            f"{label}: the model returns scores of shape {shape} for a sample, "
            f"and there are {data.classes} classes{_of_positions(y, shape)}"
        )
    if loss.weight is not None and len(loss.weight) != shape[0]:
        raise MisfitError(
            f"{label}: the model returns scores of {shape[0]} classes, and the loss has weights "
            f"of {len(loss.weight)}"
        )


def _of_positions(y: np.ndarray, shape: tuple[int, ...]) -> str:
    """Returns the end of an error message for scores that do not fit the labels y: the shape that
    they must have, or the remedy if it is known. `shape` is that of the scores of one sample."""
    if y.ndim == 1:
        return "; its last layer needs an output for each class"
    first = y[:LOOKED_AT]
    bits = ((first == 0) | (first == 1)).all()
    if y.ndim == 2 and shape == y.shape[1:] and bits and (first.sum(axis=1) == 1).all():
        return "; the labels look one-hot: give y.argmax(1)"
    where = "x".join(map(str, y.shape[1:]))
    order = ", classes first: transpose them" if shape[:-1] == y.shape[1:] else ""
    return f" and a label for each of {where} positions: they must be (classes, {where}){order}"


def model_graph(
    config: Config,
    model: Module,
    dataset: Dataset,
    loss: Criterion,
    build: Callable[[], Module] | None = None,
) -> Graph:
    """Records the graph of the model; raises ValueError if model, data and loss do not fit, and
    MemoryError if recording needs arrays that do not fit in memory."""
    label = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"
    x, dtype = dataset.train.x, dtypes.on_paper(config.dtype)

    def arguments(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = each(tensor, zeros(x, n, dtype))
        if isinstance(given, dict):
            return (), given
        return given if isinstance(given, tuple) else (given,), {}

    def check(y: Any) -> None:
        check_scores(loss, dataset, widened(y) if isinstance(y, Tensor) else y, label)

    def labels(n: int) -> np.ndarray:
        return np.resize(dataset.train.y[:n], (n, *dataset.train.y.shape[1:]))

    try:
        _check_call(model, x)
        graph = trace(
            *(model, arguments, dtype, check),
            labels=labels,
            objective=lambda sharding, axis: objective(loss, {}, sharding, axis),
            build=build,
        )
    except MisfitError:
        raise
    except ValueError as error:
        raise ValueError(f"{label}: samples are {_shapes(x)}; {error}; {REMEDY}") from None
    if not any(v.is_trained for v in graph.variables):
        raise ValueError(f"model {config.model} has no parameter with requires_grad")
    return graph


def _check_call(model: Module, x: Inputs) -> None:
    """Raises ValueError unless the first layer takes as many arguments as inputs."""
    while only_runs_layers(model) and len(model):
        model = model[0]
    given = dict.fromkeys(x, "") if isinstance(x, dict) else {}
    try:
        signature(model.forward).bind(*([] if given else arrays(x)), **given)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__}.forward: {error}") from None


def _shapes(x: Inputs) -> str:
    """Returns the shapes of a sample's inputs as text, of integers also the type."""
    described = []
    for name, array in parts(x):
        shape = "x".join(map(str, array.shape[1:])) or "() (x[:, None] has one feature)"
        kind = f"indices ({array.dtype}) " if is_index(array) else ""
        described.append(f"{kind}of shape {shape}{f' (x{name})' if name else ''}")
    return ", ".join(described)
