"""Divides the sequences of a run's samples among the ranks along cp."""

from nnmpi.addons.transformer.context.layers import cut_sequences, shard_positions
from nnmpi.addons.transformer.context.ring import Ring
from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.data.inputs import arrays
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.losses import ClassLoss
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run.setup.cutting import AxisSetUp, UncutModel, check_lengths


def _cut_sequences(uncut: UncutModel, sharding: Sharding) -> Sharding:
    """Returns the sharding with sequences divided along cp. Raises ValueError if the data has no
    sequences, or if the loss or a metric needs whole ones."""
    config, graph, loss, dataset, metrics, _ = uncut
    check_lengths(f"cp {config.cp}", dataset)
    x, y = arrays(dataset.train.x), dataset.train.y
    if y.ndim != 2 or any(array.shape[1:2] != y.shape[1:] for array in x):
        shapes = ", ".join(str(array.shape[1:]) for array in x)
        labels = f"labels of shape {y.shape[1:]}" if y.ndim > 1 else "one label each"
        raise ValueError(
            f"cp {config.cp} cuts sequences along their positions, and samples of {dataset.name} "
            f"have the shape {shapes} and {labels}: use windows of tokens with a label for each, "
            "such as --data text, or --dp"
        )
    if metrics or not isinstance(loss, ClassLoss):
        reason = f"metric {min(metrics)}" if metrics else f"loss {type(loss).__name__}"
        raise ValueError(
            f"cp {config.cp} gives each rank some positions of a sequence, and {reason} needs "
            "whole sequences: use nn.CrossEntropyLoss without metrics, or --dp"
        )
    try:
        sequences = cut_sequences(graph, config.cp, y.shape[1])
    except ValueError as error:
        raise ValueError(f"model {config.model}: {error}") from None
    if sequences.axes.get(graph.outputs[0]) != 2:
        shape = graph.edges[graph.outputs[0]].sample
        raise ValueError(
            f"cp {config.cp} cuts sequences, and the model returns scores {shape} for a sample, "
            "without an axis of positions after that of the classes: use --tp, --pp or --dp"
        )
    return sharding._replace(positions={"cp": sequences})


def _on_positions(model: Module, graph: Graph, sharding: Sharding, layout: Layout) -> None:
    shard_positions(model, graph, Ring(layout.axis["cp"], sequences_of(sharding)))


SET_UP = AxisSetUp(_cut_sequences, _on_positions)
