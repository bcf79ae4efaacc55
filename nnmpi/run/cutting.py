"""How the layers and the sequences of a model are cut among ranks, and the model of one of them."""

from collections.abc import Mapping

import numpy as np

from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.metrics import Metric
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.losses import ClassLoss
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.context.layers import on_positions
from nnmpi.parallel.context.ring import Ring
from nnmpi.parallel.context.rules import cut_sequences
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.sequence_cut import UNCUT, SequenceCut
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.run.setup import Setup


def sharding_of(
    config: Config,
    graph: Graph,
    loss: Criterion,
    dataset: Dataset,
    metrics: Mapping[str, Metric],
) -> Sharding:
    """How the layers of the model are divided among the ranks along tp, and sequences along cp.

    Logits may be spread over ranks only if the loss can be computed from its parts.
    """
    if config.cp > 1 or config.sequence_parallel:
        _check_lengths(config, dataset)
    sequences = UNCUT if config.cp == 1 else _sequences(config, graph, loss, dataset, metrics)
    if config.tp == 1:
        return UNSHARDED._replace(sequences=sequences)
    takes_parts = type(loss) is CrossEntropyLoss
    try:
        found = shard(graph, config.tp, not takes_parts, config.sequence_parallel)
    except ValueError as error:
        raise ValueError(f"model {config.model} with tp {config.tp}: {error}") from None
    return found._replace(sequences=sequences)


def _check_lengths(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if test samples have other lengths than those that are trained with."""
    both = [[*map(np.shape, (*arrays(s.x), s.y))] for s in (dataset.train, dataset.test)]
    for train, test in zip(*both, strict=True):
        if train[1:2] != test[1:2]:
            how = f"cp {config.cp}" if config.cp > 1 else "sequence_parallel"
            raise ValueError(
                f"{how} cuts sequences of {dataset.name} at the same positions in training and in "
                f"tests, and they have {train[1:2][0]} and {test[1:2][0]} positions: give both one "
                "length, or use --dp, --pp or --tp alone"
            )


def _sequences(
    config: Config,
    graph: Graph,
    loss: Criterion,
    dataset: Dataset,
    metrics: Mapping[str, Metric],
) -> SequenceCut:
    """Where sequences are cut; raises ValueError for what has none, or needs whole ones."""
    x, y = arrays(dataset.train.x), dataset.train.y
    if y.ndim != 2 or any(array.shape[1:2] != y.shape[1:] for array in x):
        shapes = ", ".join(str(array.shape[1:]) for array in x)
        raise ValueError(
            f"cp {config.cp} cuts sequences along their positions, and samples of {dataset.name} "
            f"are {shapes} with labels {y.shape[1:]}: use windows of tokens with a label for each, "
            "such as --data text, or --dp"
        )
    if metrics or not isinstance(loss, ClassLoss):
        what = f"metric {min(metrics)}" if metrics else f"loss {type(loss).__name__}"
        raise ValueError(
            f"cp {config.cp} leaves each rank some positions of a sequence, and {what} is a "
            "function of whole ones: use nn.CrossEntropyLoss without metrics, or --dp"
        )
    try:
        sequences = cut_sequences(graph, config.cp, y.shape[1])
    except ValueError as error:
        raise ValueError(f"model {config.model}: {error}") from None
    if sequences.axes.get(graph.outputs[0]) != 2:
        shape = graph.edges[graph.outputs[0]].sample
        raise ValueError(
            f"cp {config.cp} cuts sequences, and the model returns scores {shape} of a sample, of "
            "which no axis behind the classes is that of the positions: use --tp, --pp or --dp"
        )
    return sequences


def cut_model(
    config: Config, model: Module, graph: Graph, setup: Setup, layout: Layout
) -> Sharding:
    """Makes the layers of the model those that this rank has, and returns how they are cut; every
    rank calls it."""
    comm, axis = layout.all, layout.axis
    facts = setup.loss, setup.dataset, setup.metrics
    sharding = all_or_none(comm, lambda: sharding_of(config, graph, *facts))
    if config.cp > 1:
        on_positions(model, graph, Ring(axis["cp"], sharding.sequences))
    if config.tp > 1:
        all_or_none(comm, lambda: rebuild(model, graph, sharding, axis["tp"]))
    groups = [group for group in (axis["tp"], axis["cp"]) if group.size > 1]

    def meet() -> None:
        for group in groups:
            group.meet("trainer.model(x)")

    if groups:
        model._together = meet
    return sharding
