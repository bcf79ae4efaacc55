"""The checks of options by add-ons, by what is known when each is made."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nnmpi.addons import Table
from nnmpi.comm import Comm
from nnmpi.data import Dataset
from nnmpi.metrics import Metric
from nnmpi.nn.graph import Graph
from nnmpi.nn.module import Module
from nnmpi.options.config import Config
from nnmpi.parallel.tensor.sharding import Sharding


def _nothing(*_: object) -> None:
    """Refuses nothing, where an add-on has no check."""


class Checks(NamedTuple):
    """An add-on's checks for an option, which raise ValueError, by what is known.

    ranks  (config, ranks): how many ranks there are
    job    (config, comm): the ranks of a job that trains; every rank calls it
    batch  (config, samples): how many training samples there are
    graph  (config, graph, sharding): the model's layers, and how tp divides them
    model  (config, model): the model
    loss   (config, loss, metrics): what is measured; the loss is a Criterion
    text   (config, dataset): a data set of text
    """

    ranks: Callable[[Config, int], None] = _nothing
    job: Callable[[Config, Comm], None] = _nothing
    batch: Callable[[Config, int], None] = _nothing
    graph: Callable[[Config, Graph, Sharding], None] = _nothing
    model: Callable[[Config, Module], None] = _nothing
    loss: Callable[[Config, Any, Mapping[str, Metric]], None] = _nothing
    text: Callable[[Config, Dataset], None] = _nothing


CHECKS: Table[Checks] = Table("checks")
"""By an option: what is refused with it."""
