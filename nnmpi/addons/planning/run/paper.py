"""Describes clusters, and makes models that predict layouts on them."""

from typing import Any, NamedTuple

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.described import machine_named, model_times
from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.machine import TYPICAL, Machine
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.tensor.constraints import WayPrice
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run.setup.cutting import UncutModel, sharding_of

BOTH = "--vocabulary takes the place of --data: give one of them"

MOST_RANKS = 1 << 20


def add_ranks(group: Any) -> None:
    """Adds the options --ranks and --nodes to a group of a parser."""
    group.add_argument("--ranks", type=int, required=True, metavar="N")
    group.add_argument(
        "--nodes", type=int, default=None, metavar="K",
        help="nodes that the ranks are on; default: 1, or as a described machine says",
    )  # fmt: skip


def add_vocabulary(group: Any) -> None:
    """Adds the option --vocabulary to a group of a parser."""
    group.add_argument(
        "--vocabulary", type=int, default=None, metavar="N",
        help="instead of --data: windows of --context tokens, of a vocabulary of N",
    )  # fmt: skip


class MachineRequest(NamedTuple):
    """The machine that a command assumes, its nodes, and its ranks' device."""

    machine: Machine
    nodes: int
    device: str


def machine_on_paper(
    name: str | None, ranks: int, nodes: int | None, config: Config
) -> MachineRequest:
    """Returns the machine that --machine names, with nodes and device. A data sheet determines the
    device and, if `nodes` is None, the number of nodes. Raises ValueError if they cannot have that
    many ranks."""
    machine = TYPICAL if name is None else machine_named(name, config.dtype, config.momentum)
    if nodes is None:
        nodes = 1 if machine.sheet is None else -(-ranks // machine.ranks)
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks {ranks} must be from 1 to {MOST_RANKS:,}")
    if not 1 <= nodes <= ranks:
        raise ValueError(f"nodes {nodes} must be from 1 to {ranks}, the number of ranks")
    device = machine.sheet.device if machine.sheet is not None else config.device
    return MachineRequest(machine, nodes, device)


def cost_models(
    uncut: UncutModel, cluster: Cluster, machine: Machine
) -> tuple[Arranger, CostModel]:
    """Returns what predicts memory and time of layouts; an optimizer that was not measured takes as
    long as the slowest one."""
    config = uncut.config
    times = model_times(uncut.graph, machine, config.dtype)
    if config.optimizer not in machine.updates:
        most = max(machine.updates.values())
        machine = machine._replace(updates={**machine.updates, config.optimizer: most})

    def cut(config_of_layout: Config, price: WayPrice | None = None) -> Sharding:
        return sharding_of(uncut._replace(config=config_of_layout, price=price))

    arranger = Arranger(config, cluster, uncut.graph, times, strategies.check, cut)
    return arranger, CostModel(machine, times, ExchangeTimes(machine, cluster))
