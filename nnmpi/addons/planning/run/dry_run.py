"""Computes the bytes that each kind of rank holds and sends, without training: for --dry-run and
for `nnmpi.simulate layout`, whose options and function are `add_options` and `run`."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from nnmpi.addons.planning.fastest_sum import with_fastest_sum
from nnmpi.addons.planning.lanes import timelines
from nnmpi.addons.planning.layout_svg import as_svg
from nnmpi.addons.planning.machine import TYPICAL, Machine
from nnmpi.addons.planning.paper.rank_kinds import BACKUPS
from nnmpi.addons.planning.run.layout_events import layout_event, moves_event
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.addons.planning.run.paper import (
    BOTH,
    add_ranks,
    add_vocabulary,
    cost_models,
    machine_on_paper,
)
from nnmpi.addons.planning.run.step_text import lines
from nnmpi.addons.planning.step_time import step_time
from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.comm import Comm
from nnmpi.comm.stderr import print_error
from nnmpi.data import blank
from nnmpi.data.inputs import arrays
from nnmpi.io.checkpoints.snapshot import ARRANGEMENT_GROUPS
from nnmpi.io.output import Event, open_report
from nnmpi.io.output.messages import as_text
from nnmpi.options import cli
from nnmpi.options.amounts import amount, duration, plural
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import quoted
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster, discover
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.run.setup.cutting import UncutModel, uncut, uncut_of
from nnmpi.run.setup.datasets import data_options
from nnmpi.run.setup.setup import (
    MEMORY_LIMITS,
    Setup,
    TrainerArguments,
    build_model,
    initialise,
    set_up,
)
from nnmpi.run.training import SUPERVISIONS, RunParts

HELP = "what each rank of a run holds and sends"

GROUPS = ("model", "data", "training", "layout", "pipeline", "reduce", "sync", "equality")

MOST_MOVED = 256  # ranks; the time to find moves grows with their square


def print_dry_run(c: Config, comm: Comm) -> int:
    """Prints what each rank would hold and send; returns the exit status. Every rank calls it."""
    if supervision := SUPERVISIONS.chosen(c):
        fewer = supervision.layout(c, comm)
        if comm.rank == 0:
            print_error(f"nnmpi.train: {fewer.why}")
        work = comm.split(0 if comm.rank < fewer.ranks else None)
        if work is None:
            return 0
        c, comm = fewer.config, work
    data = None
    if c.data.startswith("synthetic:"):  # it needs no files, nor numbers
        data = all_or_none(comm, lambda: blank(c.data, **data_options(c)))
    event = dry_run(set_up(c, comm, TrainerArguments(data=data), c.ranks), comm)
    with open_report(c, comm) as report:
        report.event(event)
    return 0


def dry_run(setup: Setup, comm: Comm) -> Event:
    """Returns what --dry-run prints as JSON values: model, data and layout, and what ranks hold and
    send in a step. This is computed for the ranks of `comm` or, if `config.ranks` is set, for that
    number of ranks, which need not exist. Every rank of `comm` calls it."""
    config, dataset = setup.config, setup.dataset
    paper = config.ranks and Cluster.on_paper(config.ranks, device=setup.on.name)
    cluster = _surviving(config, paper or discover(comm, setup.on))
    model = all_or_none(comm, lambda: build_model(config, setup.build, setup.dataset))

    def arranged() -> Arrangement:
        strategies.check(config, cluster.size)
        given = config, model, dataset, setup.loss, setup.metrics
        return on_paper(uncut(*given, partial(build_model, config, setup.build, dataset)), cluster)

    arrangement = all_or_none(comm, arranged)
    for limit in MEMORY_LIMITS.given(arrangement.config):
        arrangement = limit.within(arrangement, comm, model, setup.samples, setup.on)
    if config.load:
        all_or_none(comm, lambda: initialise(config, ModelPart.whole(model), setup.on))
    if arrangement.store.buckets:
        strategies.check_micro_batches(model, setup.train, setup.steps, config.micro_batches)
    splits = dataset.train, dataset.test
    steps_per_epoch = len(setup.train)
    return {
        **layout_event(arrangement),
        "event": "dry-run",
        "on_paper": config.ranks is not None,
        "layers": repr(model),
        "data": dataset.name,
        "train_samples": len(dataset.train.y),
        "test_samples": len(dataset.test.y),
        "data_bytes": sum(a.nbytes for split in splits for a in (*arrays(split.x), split.y)),
        "steps": setup.steps,
        "epochs": -(-setup.steps // steps_per_epoch),
        "steps_per_epoch": steps_per_epoch,
    }


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of nnmpi.train that determine what ranks hold and send."""
    p.argument_default = argparse.SUPPRESS  # Config knows the defaults
    cluster = p.add_argument_group("cluster")
    add_ranks(cluster)
    cluster.add_argument(
        "--machine", default=None, metavar="NAME[:RANKS]|FILE",
        help="also predict the time of a step on a described machine, such as a100-80g:8, or on "
        "that of a file; see nnmpi.plan",
    )  # fmt: skip
    add_vocabulary(cluster)
    cluster.add_argument(
        "--from", dest="before", metavar="OPTIONS", default=None,
        help="the old layout, with --ranks, in quotes: shows what ranks move to get to the new one",
    )  # fmt: skip
    for option in options():
        if option.name in BACKUPS.where:
            cli.add_flag(cluster, option)
    cli.add_flags(p, GROUPS)
    output = p.add_argument_group("output")
    output.add_argument(
        "--svg",
        type=Path,
        metavar="FILE",
        default=None,
        help="write a picture, with --from of both layouts, with --list of the step: what each "
        "rank of a pipeline computes and what goes on beside it, as predicted for --machine",
    )
    output.add_argument(
        "--list", action="store_true", default=False,
        help="also print the step of each kind of rank, as a list of operations",
    )  # fmt: skip
    output.add_argument("--json", action="store_true", default=False, help="print JSON")


def run(given: argparse.Namespace) -> Any:
    """Returns the output of `simulate layout`: as text, or with --json as a dict of JSON values."""
    if given.vocabulary is not None and hasattr(given, "data"):
        raise ValueError(BOTH)
    config, cluster, machine = _requested(given)
    model, known = uncut_of(config, given.vocabulary)
    new, seconds = _arranged(known, cluster, machine)
    event = {**layout_event(new), **seconds}
    layouts = {f"{config.model} on {plural(new.ranks, 'rank')}": new}
    if given.before is not None:
        other, old_cluster, machine = _requested(_old_options(given))
        old, _ = _arranged(known._replace(config=other), old_cluster, machine)
        event["moves"] = moves_event(old, new, model)
        layouts = {f"{config.model} on {plural(old.ranks, 'rank')}, before": old, **layouts}
    listed = [*lines(new)] if given.list else []
    if given.svg:
        picture = _drawn(new, known, cluster, machine) if given.list else as_svg(layouts)
        given.svg.write_text(picture, encoding="utf-8")
    if given.json:
        return {**event, "lists": listed} if listed else event
    return "\n".join([as_text(event), *listed])


def _arranged(
    uncut: UncutModel, cluster: Cluster, machine: Machine | None
) -> tuple[Arrangement, Event]:
    """Returns the arrangement of a layout, and further fields for the JSON output of `simulate
    layout`.

    Without a machine there are none. With one, stages and the all-reduce are chosen as by a plan,
    and the fields have the predicted seconds of a step, term by term."""
    if machine is None:
        return on_paper(uncut, cluster), {}
    arranger, costs = cost_models(uncut, cluster, machine)
    a = with_fastest_sum(arranger.arranged_by(uncut.config), costs.exchanges)
    time = step_time(a, costs)
    terms = ", ".join(f"{term} {duration(t)}" for term, t in time._asdict().items() if t)
    memory = "" if machine.sheet is None else f"; a rank has {amount(machine.sheet.memory)}"
    note = f"a step takes {duration(time.seconds)} on {machine.cpu}: {terms}{memory}"
    return a, {"seconds": time.seconds, **time._asdict(), "notes": [*a.graph.notes, note]}


def _drawn(a: Arrangement, uncut: UncutModel, cluster: Cluster, machine: Machine | None) -> str:
    """Returns the predicted timeline of a step with this layout, as SVG."""
    machine = machine or TYPICAL
    _, costs = cost_models(uncut, cluster, machine)
    title = f"{a.config.model} on {plural(a.ranks, 'rank')}: a step, as predicted ({machine.cpu})"
    return svg(timelines(a, costs), title)


def _old_options(given: argparse.Namespace) -> argparse.Namespace:
    """Returns the options of the layout in --from, all others unchanged."""
    p = cli.Parser("nnmpi.simulate layout", argument_default=argparse.SUPPRESS)
    add_ranks(p)
    cli.add_flags(p, ARRANGEMENT_GROUPS)
    of_layouts = {"ranks", "nodes", *(option.name for option in options(ARRANGEMENT_GROUPS))}
    kept = {name: value for name, value in vars(given).items() if name not in of_layouts}
    try:
        old = p.parse_args(shlex.split(given.before))
    except ValueError as error:
        raise ValueError(f"--from {quoted(given.before)}: {error}") from None
    if max(old.ranks, given.ranks) > MOST_MOVED:
        raise ValueError(f"--from is for at most {MOST_MOVED} ranks: give fewer --ranks")
    return argparse.Namespace(**{**kept, **vars(old)})


def _requested(given: argparse.Namespace) -> tuple[Config, Cluster, Machine | None]:
    """Returns config, cluster and machine (or None) of these options."""
    known = {*BACKUPS.where, *(option.name for option in options(GROUPS))}
    requested = {name: value for name, value in vars(given).items() if name in known}
    config = Config(**cli.with_layout(requested))
    machine, nodes, device = machine_on_paper(given.machine, given.ranks, given.nodes, config)
    cluster = _surviving(config, Cluster.on_paper(given.ranks, nodes, device))
    strategies.check(config, cluster.size)
    return config, cluster, None if given.machine is None else machine


def _surviving(config: Config, cluster: Cluster) -> Cluster:
    """Returns the cluster, marked as surviving losses if there are backups."""
    return cluster._replace(survives=cluster.survives or bool(BACKUPS.chosen(config)))


PARTS = RunParts(instead=print_dry_run)
