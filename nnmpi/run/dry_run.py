"""The bytes that each kind of rank holds and sends, without training: --dry-run, `simulate layout`.

The latter is a subcommand of `nnmpi.simulate`, with `add_options` and `run`.
"""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from nnmpi.comm import Comm
from nnmpi.data.inputs import arrays
from nnmpi.io.checkpoints.snapshot import LAYOUT_GROUPS
from nnmpi.io.output import Event
from nnmpi.io.output.messages import as_text
from nnmpi.options import cli
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import quoted
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster, discover
from nnmpi.parallel.arrangement.drawing import as_svg
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.tensor.constraints import WayPrice
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.planning.arranger import Arranger
from nnmpi.planning.described import description_named, machine_named, model_times
from nnmpi.planning.exchange_time import ExchangeTimes, with_fastest_sum
from nnmpi.planning.residences import within_memory
from nnmpi.planning.step_time import CostModel, step_time
from nnmpi.run.setup.cutting import UncutModel, on_paper, sharding_of, uncut, uncut_of
from nnmpi.run.setup.setup import Setup, build_model, initialise
from nnmpi.run.start_events import layout_event, moves_event
from nnmpi.sim.drawing.tables import amount, duration, plural

HELP = "what each rank of a run holds and sends"

GROUPS = ("model", "data", "training", "layout", "pipeline", "reduce", "sync", "equality")

BOTH = "--vocabulary takes the place of --data: give one of them"

MOST_RANKS = 1 << 20
MOST_MOVED = 256  # ranks; the time to find moves grows with their square


def dry_run(setup: Setup, comm: Comm) -> Event:
    """The dry-run event for the ranks of `comm`, or for `config.ranks` ranks on paper. Every rank
    calls it."""
    config, dataset = setup.config, setup.dataset
    paper = config.ranks and Cluster.on_paper(config.ranks, device=setup.on.name)
    cluster = _surviving(config, paper or discover(comm, setup.on))
    model = all_or_none(comm, lambda: build_model(config, setup.build, setup.dataset))

    def arranged() -> Arrangement:
        strategies.check(config, cluster.size)
        given = config, model, dataset, setup.loss, setup.metrics
        return on_paper(uncut(*given, partial(build_model, config, setup.build, dataset)), cluster)

    arrangement = all_or_none(comm, arranged)
    arrangement = within_memory(arrangement, comm, model, setup.samples, setup.on)
    if config.load:
        all_or_none(comm, lambda: initialise(config, ModelPart.whole(model), setup.on))
    if arrangement.store.buckets:
        strategies.check_micro_batches(model, setup.train, setup.steps, config.micro_batches)
    splits = dataset.train, dataset.test
    steps = len(setup.train)
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
        "epochs": -(-setup.steps // steps),
        "steps_per_epoch": steps,
    }


def add_vocabulary(group: Any) -> None:
    """Adds --vocabulary, which plans take too."""
    group.add_argument(
        "--vocabulary", type=int, default=None, metavar="N",
        help="instead of --data: windows of --context tokens, of a vocabulary of N",
    )  # fmt: skip


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of `simulate layout`: those of nnmpi.train that determine what ranks hold
    and send."""
    p.argument_default = argparse.SUPPRESS  # Config knows the defaults
    cluster = p.add_argument_group("cluster")
    _add_cluster(cluster)
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
    cli.add_flags(p, GROUPS)
    backups = p.add_argument_group("backups")
    backups.add_argument(
        "--backup", type=int, nargs="?", const=0, metavar="N", help="with backups every N steps"
    )
    output = p.add_argument_group("output")
    output.add_argument(
        "--svg",
        type=Path,
        metavar="FILE",
        default=None,
        help="write a picture, with --from of both layouts",
    )
    output.add_argument("--json", action="store_true", default=False, help="print JSON")


def _add_cluster(p: Any) -> None:
    p.add_argument("--ranks", type=int, required=True, metavar="N")
    p.add_argument(
        "--nodes", type=int, default=None,
        help="nodes that the ranks are on; default: 1, or as a described machine says",
    )  # fmt: skip


def run(given: argparse.Namespace) -> Any:
    """The output of `simulate layout`, as text or as an event."""
    if given.vocabulary is not None and hasattr(given, "data"):
        raise ValueError(BOTH)
    config, cluster = _requested(given)
    strategies.check(config, cluster.size)
    model, known = uncut_of(config, given.vocabulary)
    costs = given.machine and _costs(known, cluster, given.machine)
    new = _arranged(known, cluster, costs)
    event, layouts = (
        {**layout_event(new), **(_on_machine(new, costs) if costs else {})},
        {f"{config.model} on {plural(new.ranks, 'rank')}": new},
    )
    if given.before is not None:
        other, old_cluster = _requested(_old_options(given))
        strategies.check(other, old_cluster.size)
        old = _arranged(known._replace(config=other), old_cluster, costs)
        event["moves"] = moves_event(old, new, model)
        layouts = {f"{config.model} on {plural(old.ranks, 'rank')}, before": old, **layouts}
    if given.svg:
        given.svg.write_text(as_svg(layouts), encoding="utf-8")
    return event if given.json else as_text(event)


def _costs(uncut: UncutModel, cluster: Cluster, name: str) -> CostModel:
    """The times of a model on the machine of --machine."""
    config = uncut.config
    machine = machine_named(name, config.dtype, config.momentum)
    if config.optimizer not in machine.updates:
        most = max(machine.updates.values())
        machine = machine._replace(updates={**machine.updates, config.optimizer: most})
    times = model_times(uncut.graph, machine, config.dtype)
    return CostModel(machine, times, ExchangeTimes(machine, cluster))


def _arranged(uncut: UncutModel, cluster: Cluster, costs: CostModel | None) -> Arrangement:
    """The arrangement of a layout; on a machine, with the cut and the all-reduce that a plan for it
    would have."""
    if costs is None:
        return on_paper(uncut, cluster)

    def cut(config: Config, price: WayPrice | None = None) -> Sharding:
        return sharding_of(uncut._replace(config=config, price=price))

    arranger = Arranger(uncut.config, cluster, uncut.graph, costs.model, strategies.check, cut)
    exchanges = ExchangeTimes(costs.machine, cluster)
    return with_fastest_sum(arranger.arranged_by(uncut.config), exchanges)


def _on_machine(a: Arrangement, costs: CostModel) -> Event:
    """The predicted seconds of a step on a machine, with a note of them."""
    machine, time = costs.machine, step_time(a, costs)
    terms = ", ".join(f"{term} {duration(t)}" for term, t in time._asdict().items() if t)
    memory = "" if machine.sheet is None else f"; a rank has {amount(machine.sheet.memory)}"
    note = f"a step takes {duration(time.seconds)} on {machine.cpu}: {terms}{memory}"
    return {"seconds": time.seconds, **time._asdict(), "notes": [*a.graph.notes, note]}


def _old_options(given: argparse.Namespace) -> argparse.Namespace:
    """The options of the old layout: those of --from, and all options that do not concern a
    layout."""
    p = cli.Parser("nnmpi.simulate layout", argument_default=argparse.SUPPRESS)
    _add_cluster(p)
    cli.add_flags(p, LAYOUT_GROUPS)
    of_layouts = {"ranks", "nodes", *(option.name for option in options(LAYOUT_GROUPS))}
    kept = {name: value for name, value in vars(given).items() if name not in of_layouts}
    try:
        old = p.parse_args(shlex.split(given.before))
    except ValueError as error:
        raise ValueError(f"--from {quoted(given.before)}: {error}") from None
    if max(old.ranks, given.ranks) > MOST_MOVED:
        raise ValueError(f"--from is for at most {MOST_MOVED} ranks: give fewer --ranks")
    return argparse.Namespace(**{**kept, **vars(old)})


def _requested(given: argparse.Namespace) -> tuple[Config, Cluster]:
    """The config and the cluster that these options describe."""
    known = {"backup", *(option.name for option in options(GROUPS))}
    requested = {name: value for name, value in vars(given).items() if name in known}
    config = Config(**cli.with_layout(requested))
    described = given.machine and description_named(given.machine)
    nodes = given.nodes
    if nodes is None:
        nodes = -(-given.ranks // described.ranks) if described else 1
    check_cluster(given.ranks, nodes)
    device = described.device if described else config.device
    return config, _surviving(config, Cluster.on_paper(given.ranks, nodes, device))


def _surviving(config: Config, cluster: Cluster) -> Cluster:
    """The cluster, as one whose job survives the loss of ranks if backups are asked for."""
    return cluster._replace(survives=cluster.survives or config.backup is not None)


def check_cluster(ranks: int, nodes: int) -> None:
    """Raises ValueError unless so many ranks on so many nodes can be arranged on paper."""
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks {ranks} must be from 1 to {MOST_RANKS:,}")
    if not 1 <= nodes <= ranks:
        raise ValueError(f"nodes {nodes} must be from 1 to {ranks}, the number of ranks")
