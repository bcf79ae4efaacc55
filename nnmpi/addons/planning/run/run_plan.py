"""Plans a run of the Trainer, before its ranks take their parts of the model (`--plan`)."""

from dataclasses import replace
from functools import partial
from typing import Any

from nnmpi.addons.planning.machine import read_machine
from nnmpi.addons.planning.run.deadline import Deadline
from nnmpi.addons.planning.run.measuring import WITHIN, measure
from nnmpi.addons.planning.run.planning import (
    AUTO,
    NoLayoutFitsError,
    PlanRequest,
    plan_models,
    search,
)
from nnmpi.comm import Comm
from nnmpi.io.output import Event
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.cluster import discover
from nnmpi.run.run_state import RunPlan
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import UncutModel
from nnmpi.run.setup.setup import MEMORY_LIMITS, Setup, build_model
from nnmpi.run.training import RunParts


def planned_run(setup: Setup, config: Config, comm: Comm) -> RunPlan:
    """Returns the fastest layout for a run on these ranks. If none fits in the memory limit, the
    plan has no layout, and ranks have to swap activations to disk. Every rank calls it; rank 0
    searches."""
    assert config.plan is not None
    unplanned: Any = dict.fromkeys(("plan", *MEMORY_LIMITS.where))
    path, plain = config.plan, replace(config, **unplanned)
    limit = min((limit.of(config) for limit in MEMORY_LIMITS.given(config)), default=None)
    if path == AUTO:
        machine = measure(setup._replace(config=plain), comm, Deadline(WITHIN))
    else:
        machine = all_or_none(comm, lambda: read_machine(path))
    cluster, dataset = discover(comm, setup.on), setup.dataset

    def first() -> RunPlan:
        unfit = RunPlan({"plan": None}, {}, _no_outcome)
        if comm.rank:
            return unfit
        model = build_model(plain, setup.build, dataset)
        graph = objectives.model_graph(plain, model, dataset, setup.loss)
        request = PlanRequest(comm.size, len({*cluster.nodes}), limit, path)
        uncut = UncutModel(plain, graph, setup.loss, dataset, setup.metrics)
        try:
            layouts = search(request, plan_models(request, uncut, cluster, machine))
        except NoLayoutFitsError:
            return unfit
        best = layouts.search.best[0]
        started = {
            "layout": best.flags,
            "predicted_seconds": best.time.seconds,
            "predicted_bytes": best.nbytes,
            "looked": layouts.search.counts.looked,
            "notes": layouts.notes,
        }
        outcome = partial(_outcome, best.time.seconds)
        return RunPlan({**unplanned, **best.options}, {"plan": started}, outcome)

    return gather_objects(comm, all_or_none(comm, first))[0]


def _no_outcome(measured: float | None) -> Event:
    return {}


def _outcome(predicted: float, measured: float | None) -> Event:
    """Returns the field `plan` of a log's last event: predicted and, if known, measured seconds of
    a step, and the relative error."""
    known = {"predicted_seconds": predicted}
    if measured is not None:
        known |= {"measured_seconds": measured, "error": predicted / measured - 1}
    return {"plan": known}


PARTS = RunParts(plan=planned_run)
