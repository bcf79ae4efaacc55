"""--plan: the layout that a run takes, found when its ranks are there."""

from dataclasses import replace

from nnmpi.comm import Comm
from nnmpi.options.config import Config
from nnmpi.options.terms import size
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.discovery import discover
from nnmpi.parallel.planning.machine import read_machine
from nnmpi.run.measuring import measure
from nnmpi.run.planning.planning import Asked, NoneFitsError, basis, search
from nnmpi.run.run_state import RunPlan
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import Uncut
from nnmpi.run.setup.setup import Setup, build_model

AUTO = "auto"
"""The --plan that measures."""


def planned_run(setup: Setup, config: Config, comm: Comm) -> RunPlan | None:
    """The fastest layout of a run on these ranks; None where none fits into its --memory, so that
    ranks along dp have to swap. Every rank calls it.

    The first rank searches, while the others wait; all get what it has found.
    """
    assert config.plan is not None
    path, plain = config.plan, replace(config, plan=None, memory=None)
    limit = size(config.memory) if config.memory else None
    if path == AUTO:
        machine = measure(setup._replace(config=plain), comm)
    else:
        machine = all_or_none(comm, lambda: read_machine(path))
    cluster, dataset = discover(comm, setup.on), setup.dataset

    def first() -> RunPlan | None:
        if comm.rank:
            return None
        model = build_model(plain, setup.build, dataset)
        graph = objectives.model_graph(plain, model, dataset, setup.loss)
        asked = Asked(comm.size, len({*cluster.nodes}), limit, path)
        uncut = Uncut(plain, graph, setup.loss, dataset, setup.metrics)
        try:
            found = search(asked, basis(asked, uncut, cluster, machine))
        except NoneFitsError:
            return None
        return RunPlan(found.search.best[0], found.search.counts.looked, found.notes)

    return gather_objects(comm, all_or_none(comm, first))[0]
