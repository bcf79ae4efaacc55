"""The command `python -m nnmpi.plan`: finds the fastest layout of N ranks, without MPI.

Exit status: 0 success, 1 the output could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from nnmpi.addons.planning.drawing import as_svg
from nnmpi.addons.planning.options import TRAINED
from nnmpi.addons.planning.run.explained import as_text as explanation
from nnmpi.addons.planning.run.explained import explained
from nnmpi.addons.planning.run.paper import BOTH, add_ranks, add_vocabulary, machine_on_paper
from nnmpi.addons.planning.run.planning import (
    MEETINGS,
    SEARCH_WITHIN,
    SUMS,
    PlanRequest,
    network_needs,
    on_paper,
    search,
)
from nnmpi.addons.planning.run.report import as_event, as_text, as_toml
from nnmpi.options import cli, value_forms
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown

CLUSTER = ("ranks", "nodes", "memory", "machine", "vocabulary", "within")


def parser() -> cli.Parser:
    """The parser: options of nnmpi.train on what is trained, cluster and output."""
    about = "Find the layout of ranks that trains a model fastest, without MPI."
    p = cli.Parser("nnmpi.plan", description=about, argument_default=argparse.SUPPRESS)
    cluster = p.add_argument_group("cluster")
    add_ranks(cluster)
    cluster.add_argument(
        "--memory", type=cli.argument(value_forms.size), default=None, metavar="SIZE",
        help="of each rank, such as 8GB",
    )  # fmt: skip
    cluster.add_argument(
        "--machine", default=None, metavar="NAME[:RANKS]|FILE",
        help="a described machine, such as a100-80g:8 with 8 ranks a node; a FILE.toml that "
        "describes one; or a FILE.json written by nnmpi.measure",
    )  # fmt: skip
    add_vocabulary(cluster)
    cluster.add_argument(
        "--within", type=cli.argument(value_forms.duration), default=None, metavar="TIME",
        help="how much processor time the search takes at most, such as 30s or 5m (default "
        f"{SEARCH_WITHIN:g}s); a note says how many layouts it had no time for",
    )  # fmt: skip
    group = p.add_argument_group("one layout")
    group.add_argument(
        "--explain", default=None, metavar="OPTIONS",
        help="show where the time of one layout goes, as --explain='--dp 2 --tp 2'",
    )  # fmt: skip
    group.add_argument(
        "--trace", type=Path, default=None, metavar="FILE",
        help="a trace of this layout: also print its measured seconds",
    )  # fmt: skip
    cli.add_flags(p, TRAINED)
    reduce = p.add_argument_group("reduce")
    for option in SUMS:
        cli.add_flag(reduce, option)
    sync = p.add_argument_group("sync")
    for option in MEETINGS:
        cli.add_flag(sync, option)
    output = p.add_argument_group("output")
    output.add_argument(
        "--layout-out", type=Path, default=None, metavar="FILE.toml",
        help="write the first layout, as nnmpi.train --layout FILE.toml reads it",
    )  # fmt: skip
    output.add_argument("--svg", type=Path, default=None, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", default=False, help="print JSON")
    return p


def command(options: argparse.Namespace) -> int:
    """Prints the fastest layouts, or with --explain the parts of one's time."""
    given = vars(options)
    ranks, nodes, memory, name, vocabulary, within = (given.pop(name) for name in CLUSTER)
    svg, is_json, layout = given.pop("svg"), given.pop("json"), given.pop("explain")
    trace, file = given.pop("trace"), given.pop("layout_out")
    if layout is None and trace is not None:
        raise ValueError("--trace needs --explain: say which layout was traced")
    if layout is not None and (svg or file or memory is not None or within is not None):
        raise ValueError(
            "--explain is about one layout: omit --svg, --layout-out, --memory and --within"
        )
    if file and file.suffix != ".toml":
        raise ValueError(f"--layout-out {shown(file)}: name a FILE.toml, as --layout takes it")
    if vocabulary is not None and "data" in given:
        raise ValueError(BOTH)
    config = Config(**given)
    machine = machine_on_paper(name, ranks, nodes, config)
    sheet = machine.machine.sheet
    limit = sheet.memory if memory is None and sheet is not None else memory
    seconds = SEARCH_WITHIN if within is None else within
    request = PlanRequest(ranks, machine.nodes, limit, name, vocabulary, seconds)
    models = on_paper(config, request, machine)
    if layout is not None:
        event = explained(models, layout, trace)
        print(json.dumps(event, indent=2) if is_json else explanation(event), flush=True)
        return 0
    plan = search(request, models)
    if svg:
        svg.write_text(as_svg(plan.search, plan.title, request.memory), encoding="utf-8")
    if file:
        file.write_text(as_toml(plan, plan.search.best[0]), encoding="utf-8")
    needs = network_needs(plan, models) if machine.nodes > 1 else ()
    event = as_event(plan, needs, str(file) if file else None)
    print(json.dumps(event, indent=2) if is_json else as_text(event), flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments, "take fewer ranks, or a smaller model")
