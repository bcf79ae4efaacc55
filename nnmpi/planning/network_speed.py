"""The speed of the network between nodes at which a layout computes for a share of the time."""

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.step_time import CostModel, step_model, step_time
from nnmpi.sim.replicas import gbit_needed


def gbit_of_shares(a: Arrangement, costs: CostModel) -> dict[str, float | None]:
    """The Gbit/s between nodes by the share of a step that is computing: passes, the optimizer,
    and what is neither an exchange nor made for one."""
    model, machine = step_model(a, costs), costs.machine
    computing = model.time.compute + model.updated.optimizer(a, costs) + model.time.other

    def seconds(rate: float) -> float:
        there = machine._replace(far=machine.far._replace(beta=1 / rate))
        times = ExchangeTimes(there, a.cluster)
        return step_time(a, costs._replace(machine=there, exchanges=times)).seconds

    return gbit_needed(computing, seconds)
