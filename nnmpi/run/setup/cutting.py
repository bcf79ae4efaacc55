"""Divides the layers of a model among ranks, and makes the part of one rank; or computes how it
would be divided, for dry runs, plans, and the remaining ranks after one was lost."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.addons import Table
from nnmpi.data import CONTEXT, Dataset, blank, blank_windows
from nnmpi.data.inputs import arrays
from nnmpi.metrics import Metric
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.graph import Graph
from nnmpi.options import value_forms
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.mesh import CUT_BY_AXIS
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.tensor.constraints import UNCONSTRAINED, Constraints, WayPrice
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.parallel.tensor.ways import LAYOUT_AXES
from nnmpi.run.setup import objectives
from nnmpi.run.setup.datasets import data_options
from nnmpi.run.setup.setup import NO_METRICS, Setup, build_model

Divide: TypeAlias = Callable[[Config, Graph], Division]
"""A function (config, graph) that divides a model into stages."""


class UncutModel(NamedTuple):
    """A run's model before it is divided among ranks, with all that determines how. `price` returns
    the seconds of a way to divide a layer along tp, if the fastest ways are searched."""

    config: Config
    graph: Graph
    loss: Criterion
    dataset: Dataset
    metrics: Mapping[str, Metric]
    price: WayPrice | None = None


def check_lengths(how: str, dataset: Dataset) -> None:
    """Raises ValueError if training and test sequences differ in length; `how` cuts them."""
    both = [[*map(np.shape, (*arrays(s.x), s.y))] for s in (dataset.train, dataset.test)]
    for train, test in zip(*both, strict=True):
        if train[1:2] != test[1:2]:
            raise ValueError(
                f"{how} cuts sequences of {dataset.name} at the same positions in training and in "
                f"tests, and they have {train[1:2][0]} and {test[1:2][0]} positions: give both the "
                "same length, or use only --dp, --pp or --tp"
            )


EVERY_AXIS = frozenset({"batch", "channels", *LAYOUT_AXES.where})
"""The axes of activations that may be cut when the fastest ways are searched."""


def _constraints(config: Config, price: WayPrice | None) -> Constraints:
    """Returns the Constraints under which layers are divided along tp: those of --layout; with
    `price` none, since the fastest ways are searched."""
    if price is not None:
        return Constraints(EVERY_AXIS, price=price)
    if config.layout is None:
        return UNCONSTRAINED
    said = value_forms.layout(config.layout)
    samples = config.batch_size // (config.dp or 1)
    return Constraints(said.along("tp") - {"length"}, said.ways, samples)


_shard_once = cached(shard)


def _cut_layers(uncut: UncutModel, sharding: Sharding) -> Sharding:
    """Returns the Sharding with the division of layers along tp added. Logits stay whole on each
    rank unless the loss can be computed from parts of them."""
    config, takes_parts = uncut.config, type(uncut.loss) is CrossEntropyLoss
    options = uncut.graph, config.tp, not takes_parts, config.cuts_positions
    constraints = _constraints(config, uncut.price)
    try:
        is_free = constraints is UNCONSTRAINED
        cut = _shard_once(*options) if is_free else shard(*options, constraints=constraints)
    except ValueError as error:
        raise ValueError(f"model {config.model} with tp {config.tp}: {error}") from None
    return cut._replace(positions=sharding.positions)


def _rebuilt(model: Module, graph: Graph, sharding: Sharding, layout: Layout) -> None:
    from nnmpi.parallel.tensor.parallelize import rebuild  # loaded if layers are divided

    all_or_none(layout.all, lambda: rebuild(model, graph, sharding, layout.axis["tp"]))


class AxisSetUp(NamedTuple):
    """The functions by which a model is divided among the ranks along an axis such as tp.

    plans      returns the given Sharding with the division along this axis added; or raises
               ValueError
    rewrites   replaces layers of a model by this rank's parts of them; every rank calls it
    """

    plans: Callable[[UncutModel, Sharding], Sharding]
    rewrites: Callable[[Module, Graph, Sharding, Layout], None]


SET_UPS = {"tp": AxisSetUp(_cut_layers, _rebuilt)}
"""How each axis cuts a model; along others ranks have whole layers and sequences."""


MORE_SET_UPS: Table[AxisSetUp] = Table("axis_set_ups")
"""By an axis of an add-on: how it cuts models."""


def set_ups(config: Config) -> dict[str, AxisSetUp]:
    """Returns what divides a model along axes with several ranks, add-ons' first."""
    axes = (axis for axis in reversed(CUT_BY_AXIS) if getattr(config, axis) > 1)
    return {axis: SET_UPS.get(axis) or MORE_SET_UPS.needed(axis) for axis in axes}


def sharding_of(uncut: UncutModel) -> Sharding:
    """Returns how layers and sequences of a model are divided among ranks."""
    config, sharding = uncut.config, UNSHARDED
    if config.cuts_positions:
        check_lengths("sequence_parallel", uncut.dataset)
    for row in set_ups(config).values():
        sharding = row.plans(uncut, sharding)
    return sharding


def cut_model(
    config: Config, model: Module, graph: Graph, setup: Setup, layout: Layout
) -> Sharding:
    """Replaces the layers of a model by this rank's parts of them, and returns the Sharding, which
    describes how the model is divided. Every rank calls it, with the same `graph` of the model."""
    filled = replace(config, dp=layout.mesh.axes["dp"])
    uncut = UncutModel(filled, graph, setup.loss, setup.dataset, setup.metrics)
    sharding = all_or_none(layout.all, lambda: sharding_of(uncut))
    cut = set_ups(config)
    for row in cut.values():
        row.rewrites(model, graph, sharding, layout)
    groups = [layout.axis[axis] for axis in reversed(cut)]

    def meet() -> None:
        for group in groups:
            group.meet("trainer.model(x)")

    if groups:
        model._before_user_call = meet
    return sharding


# ---- on paper


def uncut_of(config: Config, vocabulary: int | None = None) -> tuple[Module, UncutModel]:
    """Returns (model, UncutModel) for the model that a config names, to plan a run without reading
    its data. The initial values of the model are not drawn yet.

    If the size of the data set is known, its samples share one row of zeros. With a `vocabulary`, a
    number of tokens, it has windows of tokens of that vocabulary instead.
    """
    if vocabulary is not None and vocabulary < 1:
        raise ValueError(f"--vocabulary {vocabulary} must be 1 or more: give the number of tokens")
    options = data_options(config)
    if vocabulary is None:
        dataset = blank(config.data, config.data_dir, config.seed, **options)
    else:
        dataset = blank_windows(vocabulary, options.get("context", CONTEXT), config.batch_size)
    model = build_model(config, None, dataset)
    return model, uncut(config, model, dataset, objectives.criterion(None))


def uncut(
    config: Config,
    model: Module,
    dataset: Dataset,
    loss: Criterion,
    metrics: Mapping[str, Metric] = NO_METRICS,
    build: Callable[[], Module] | None = None,
) -> UncutModel:
    """Returns the UncutModel for a model, whose graph it records; raises ValueError unless model,
    data and loss fit. `build` makes another instance of the model."""
    strategies.check_batch(config, len(dataset.train.y))
    objectives.check_labels(loss, dataset)
    graph = objectives.model_graph(config, model, dataset, loss, build)
    return UncutModel(config, graph, loss, dataset, metrics)


def on_cluster(uncut: UncutModel, cluster: Cluster, divide: Divide) -> Arrangement:
    """Returns the arrangement of a run on a cluster; `divide` makes the stages."""
    config, graph = uncut.config, uncut.graph
    filled = replace(config, dp=mesh_of(config, cluster.size).axes["dp"])
    sharding = sharding_of(uncut._replace(config=filled))
    return arrange(config, cluster, graph, sharding, divide(config, graph))
