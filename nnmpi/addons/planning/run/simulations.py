"""ADDED: what `nnmpi simulate` gets from planning, the subcommand `layout` and --machine."""

from nnmpi.addons.planning.described.simulated import add_machine
from nnmpi.addons.planning.run import dry_run
from nnmpi.addons.simulator.command import MoreSimulations

ADDED = MoreSimulations({"layout": dry_run}, {"machine": add_machine})
