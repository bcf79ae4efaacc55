"""--dry-run: model, steps, and what each kind of rank holds and sends, without training."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.metrics import Metric
from nnmpi.nn import Module
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.discovery import discover
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.run import builders
from nnmpi.run.on_paper import arranged
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
    if build is not None:
        config = replace(config, model=getattr(build, "__name__", type(build).__name__))
    setup = set_up(config, data, comm, loss, metrics)
    on_paper = config.ranks is not None
    cluster = Cluster.on_paper(config.ranks) if config.ranks else discover(comm)
    model = all_or_none(comm, lambda: builders.model(config, build))
    loss = setup.goal.loss
    found = all_or_none(comm, lambda: arranged(config, model, setup.dataset, loss, cluster))
    if config.load:
        all_or_none(comm, lambda: builders.initialise(config, ModelPart.whole(model), setup.on))
    if found.strategy in ("replicas", "pipeline"):
        plan.check_micro_batches(model, setup.train, setup.steps, config.micro_batches)
    splits = setup.dataset.train, setup.dataset.test
    steps = len(setup.train)
    return {
        **layout_event(found),
        "event": "dry-run",
        "on_paper": on_paper,
        "layers": repr(model),
        "data": setup.dataset.name,
        "train_samples": len(setup.dataset.train.y),
        "test_samples": len(setup.dataset.test.y),
        "data_bytes": sum(a.nbytes for split in splits for a in (*arrays(split.x), split.y)),
        "steps": setup.steps,
        "epochs": -(-setup.steps // steps),
        "steps_per_epoch": steps,
    }
