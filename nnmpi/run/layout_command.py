"""The subcommand `layout` of `python -m nnmpi.simulate`: its options, and its output."""

import argparse
import json
from pathlib import Path

from nnmpi import cli, data
from nnmpi.config import Config, options
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.drawing import as_svg
from nnmpi.run import builders, objectives
from nnmpi.run.dry_run import arranged
from nnmpi.run.report.events import layout_event
from nnmpi.run.report.messages import as_text

HELP = "what each rank of a run holds and sends"

GROUPS = ("model", "data", "training", "layout", "pipeline", "reduce", "sync", "equality")


MOST_RANKS = 1 << 16


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand: those of nnmpi.train that say what ranks hold and send."""
    p.argument_default = argparse.SUPPRESS  # Config knows the defaults
    cluster = p.add_argument_group("cluster")
    cluster.add_argument("--ranks", type=int, required=True, metavar="N")
    cluster.add_argument(
        "--nodes", type=int, default=1, help="that the ranks are spread over (default 1)"
    )
    cli.add_flags(p, GROUPS)
    output = p.add_argument_group("output")
    output.add_argument("--svg", type=Path, metavar="FILE", default=None, help="write a picture")
    output.add_argument("--json", action="store_true", default=False, help="print JSON")


def run(given: argparse.Namespace) -> str:
    """The output of `layout`."""
    if not 1 <= given.ranks <= MOST_RANKS:
        raise ValueError(f"ranks {given.ranks} must be from 1 to {MOST_RANKS:,}")
    if not 1 <= given.nodes <= given.ranks:
        raise ValueError(
            f"nodes {given.nodes} must be from 1 to {given.ranks}, the number of ranks"
        )
    known = {o.name for o in options() if o.metadata["group"] in GROUPS}
    config = Config(**{name: value for name, value in vars(given).items() if name in known})
    dataset = data.blank(config.data, config.data_dir, config.seed)
    cluster = Cluster.on_paper(given.ranks, given.nodes)
    model = builders.model(config, None)
    found = arranged(config, model, dataset, objectives.criterion(None), cluster)
    event = layout_event(found)
    if given.svg:
        title = f"{config.model} on {given.ranks:,} ranks"
        given.svg.write_text(as_svg(found, title), encoding="utf-8")
    return json.dumps(event, indent=2) if given.json else as_text(event)
