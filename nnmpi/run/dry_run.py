"""What each kind of rank holds and sends, without training: --dry-run, and `simulate layout`."""

from collections.abc import Callable, Mapping
from typing import Any

from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.metrics import Metric
from nnmpi.nn import Module
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import arrange, stages_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import estimated_division
from nnmpi.parallel.discovery import discover
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run import builders, objectives
from nnmpi.run.model_graph import model_graph
from nnmpi.run.report import Event
from nnmpi.run.report.events import layout_event
from nnmpi.run.setup import NO_METRICS, set_up


def dry_run(
    config: Config,
    build: Callable[[], Module] | None = None,
    data: Dataset | tuple[Any, ...] | None = None,
    *,
    comm: Comm,
    loss: Any = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
) -> Event:
    """The dry-run event, with the arguments of a Trainer; every rank calls it.

    It is of the ranks of `comm`, or of as many as `config.ranks` says.
    """
    setup = set_up(config, build, data, comm, loss, metrics)
    config, dataset = setup.config, setup.dataset
    cluster = Cluster.on_paper(config.ranks) if config.ranks else discover(comm)
    model = all_or_none(comm, lambda: builders.model(config, build))
    found = all_or_none(comm, lambda: arranged(config, model, dataset, setup.loss, cluster))
    if config.load:
        all_or_none(comm, lambda: builders.initialise(config, ModelPart.whole(model), setup.on))
    if found.strategy in ("replicas", "pipeline"):
        plan.check_micro_batches(model, setup.train, setup.steps, config.micro_batches)
    splits = dataset.train, dataset.test
    steps = len(setup.train)
    return {
        **layout_event(found),
        "event": "dry-run",
        "on_paper": config.ranks is not None,
        "layers": repr(model),
        "data": dataset.name,
        "train_samples": len(dataset.train.y),
        "test_samples": len(dataset.test.y),
        "data_bytes": sum(a.nbytes for split in splits for a in (*arrays(split.x), split.y)),
        "steps": setup.steps,
        "epochs": -(-setup.steps // steps),
        "steps_per_epoch": steps,
    }


UNMEASURED = {"allreduce": "ring"}
"""What stands for the fastest all-reduce where nothing is measured."""


def arranged(
    config: Config, model: Module, dataset: Dataset, loss: Criterion, cluster: Cluster
) -> Arrangement:
    """How ranks would be arranged; what a run measures is estimated."""
    plan.check(config, cluster.size)
    plan.check_batch(config, len(dataset.train.y))
    objectives.check_labels(loss, dataset)
    graph = model_graph(config, model, dataset, loss)
    whole = not objectives.takes_parts(loss, dataset)
    sharding = builders.sharded(config, graph, whole)
    division = estimated_division(graph, stages_of(config), config.pp, config.cut)
    return arrange(config, cluster, graph, sharding, division, UNMEASURED)
