"""The command `python -m nnmpi.measure`: measures how fast a machine computes a model's layers and
sums gradients; nnmpi.plan uses the file that it writes.

Start it with mpirun, with as many ranks as a node has cores for. Exit status: 0 written, 1 failed,
2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nnmpi.addons.planning.machine import Machine, read_machine
from nnmpi.addons.planning.options import TRAINED
from nnmpi.addons.planning.run.deadline import Deadline
from nnmpi.addons.planning.run.measurements import processor
from nnmpi.addons.planning.run.measuring import WITHIN, measure
from nnmpi.addons.simulator.codecs import CODECS
from nnmpi.arrays import blas
from nnmpi.comm import Comm
from nnmpi.io.files.atomic import check_target, replaced
from nnmpi.options import cli
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import shown
from nnmpi.options.value_forms import duration
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run.command import run_on_ranks
from nnmpi.run.setup.setup import set_up


def parser() -> cli.Parser:
    """Returns the parser: options of nnmpi.train on what a rank computes, --out and --within."""
    about = "Measure how long a machine takes for a model, for python -m nnmpi.plan."
    p = cli.Parser("nnmpi.measure", description=about, argument_default=argparse.SUPPRESS)
    p.add_argument("--out", required=True, metavar="FILE.json", help="where the figures go")
    p.add_argument(
        "--within", default=f"{WITHIN:g}s", metavar="TIME",
        help=f"how long it measures at most, such as 30s or 5m (default {WITHIN:g}s); the file "
        "says what there was no time for",
    )  # fmt: skip
    cli.add_flags(p, TRAINED)
    for option in options(("reduce",)):
        if option.name in CODECS.where:
            cli.add_flag(p, option)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; every rank calls it."""
    return run_on_ranks(parser(), command, arguments, "take a smaller model")


def known_machine(comm: Comm, out: str, ranks: int) -> Machine | None:
    """Returns the measurements that the file `out` already contains, to which new ones are added;
    None if there is no file.

    Only rank 0 reads the file. Raises ValueError if it was measured on another machine, or with
    another number of `ranks` per node.
    """
    if comm.rank or not Path(out).exists():
        return None
    known = read_machine(out)
    if (known.cpu, known.ranks) != (processor(), ranks):
        raise ValueError(
            f"{shown(out)} was measured with {known.ranks} ranks per node on {known.cpu}, and this "
            f"job has {ranks} on {processor()}: name another --out file"
        )
    return known


def command(comm: Comm, given: argparse.Namespace) -> int:
    """Measures the machine; rank 0 writes the file. Every rank calls it."""
    blas.tune()
    chosen = vars(given)
    out, within = chosen.pop("out"), chosen.pop("within")

    def checked() -> tuple[Config, float]:
        check_target(out, "write")
        return Config(**chosen), duration(within)

    config, seconds = all_or_none(comm, checked)
    ranks = len(comm.node())  # on all ranks: they ask each other
    known = all_or_none(comm, lambda: known_machine(comm, out, ranks))
    blas.set_threads(1)
    machine = measure(set_up(config, comm), comm, Deadline(seconds))
    if comm.rank == 0:
        with replaced(Path(out), "w") as file:
            file.write((machine.joined(known) if known else machine).as_json())
        print(_summary(machine, config, out))
        if known and machine.missing:
            print(f"what {shown(out)} had of these before stays there")
    return 0


def _summary(machine: Machine, config: Config, out: str) -> str:
    """Returns a line on what was measured, and one on what was not, if any."""
    units = f"no units of {config.model}"
    if machine.models:
        of_sizes = machine.models[0].units
        count, sizes = len(of_sizes[min(of_sizes)]), ", ".join(map(str, of_sizes))
        units = f"{count} units of {config.model} in micro-batches of {sizes}"
    line = (
        f"{machine.cpu}, {machine.ranks} ranks at a time: {len(machine.sums)} kinds of sums, "
        f"{units}, written to {shown(out)}; {machine.doubt}"
    )
    if not machine.missing:
        return line
    missing = ", ".join(machine.missing.values())
    return f"{line}\nno time was left for {missing}: give more --within, or measure when idle"
