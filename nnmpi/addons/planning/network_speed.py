"""Finds the network bandwidth at which a layout spends a given share of a step computing."""

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.step_time import step_model, step_time
from nnmpi.addons.simulator.replicas import gbit_needed
from nnmpi.parallel.arrangement.arrangement import Arrangement


def gbit_of_shares(a: Arrangement, costs: CostModel) -> dict[str, float | None]:
    """Returns the bandwidths between nodes, in Gbit/s, at which computing takes 50%, 80%, ... of a
    step, by this share as text; None if no bandwidth suffices. Computing is what
    is neither an exchange nor made for one."""
    model, machine = step_model(a, costs), costs.machine
    computing = model.time.compute + model.updated.optimizer(a, costs) + model.time.other

    def seconds(rate: float) -> float:
        there = machine._replace(far=machine.far._replace(beta=1 / rate))
        times = ExchangeTimes(there, a.cluster)
        return step_time(a, costs._replace(machine=there, exchanges=times)).seconds

    return gbit_needed(computing, seconds)
