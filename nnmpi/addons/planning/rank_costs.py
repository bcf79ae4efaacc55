"""The work of one rank in a step, from which its time is predicted: its passes and exchanges."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.list_times import hides
from nnmpi.addons.planning.machine import Machine, codec_of
from nnmpi.addons.planning.paper.rank import step
from nnmpi.addons.planning.rank_lists import whole_stages
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.addons.planning.waits import Waits
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.step_list.chain import gathers_for_use
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import COMPUTE, Kind

PHASES = {
    **dict.fromkeys((Kind.SEND_F, Kind.SEND_B), "messages"),
    **dict.fromkeys(COMPUTE, "tensor"),
    **dict.fromkeys((Kind.SUM, Kind.SEND_SUM, Kind.FINISH), "sums"),
    **dict.fromkeys((Kind.TIES, Kind.TERMS, Kind.AGREE, Kind.APPLY), "update"),
}
"""By the operation that starts an exchange, its key in `RankCosts.exchanges`."""


class CostModel(NamedTuple):
    """Seconds of a machine, of a model's units and of exchanges, to predict a step from."""

    machine: Machine
    model: ModelTimes
    exchanges: ExchangeTimes


class RankCosts(NamedTuple):
    """The work of one rank in a step, from which its time is predicted.

    stages         the rank's list in a step, with passes of whole stages and messages
    compute        a dict: stage -> the seconds of each kind of pass over a micro-batch
    exchanges      a dict: name -> the rank's collectives and messages that a term counts:
                        messages   activations and their gradients, to other pipeline stages
                        tensor     within a pass, such as sums of activations along tp
                        gathers    of parameters for ZeRO 3, and gradients that each pass scatters
                        sums       of gradients over replicas
                        update     before and after the optimizer: sums over stages or tp, the
                                   agreement of all ranks, gathers of updated parameters
                        averages   of the parameters of replicas that make steps alone
    elements       how many elements of parameters the rank updates
    bytes_copied   bytes of arrays that it reads and writes to pack and unpack messages
    """

    stages: StepList
    compute: Mapping[int, Mapping[Kind, float]]
    exchanges: Mapping[str, Sequence[Exchange]]
    elements: int
    bytes_copied: float
    waits: Waits = Waits()

    def within_passes(
        self, seconds: Callable[[Exchange], float]
    ) -> Mapping[tuple[int, Kind], float]:
        """Returns the seconds of exchanges in a pass over a micro-batch, by (stage, kind)."""
        counts = Counter((op.kind, op.stage) for op in self.stages.ops)
        by_pass = defaultdict[tuple[int, Kind], float](float)
        for exchange in self.exchanges["tensor"]:
            stage, during = exchange.stage, exchange.during
            if not counts[during, stage]:  # a stage without a gradient of its input: W is its B
                during = Kind.W
            by_pass[stage, during] += seconds(exchange) / counts[during, stage]
        return by_pass

    def optimizer(self, a: Arrangement, costs: CostModel) -> float:
        """The seconds that the optimizer takes to update the rank's elements."""
        return self.elements * costs.machine.updates[a.config.optimizer]

    def packing(self, a: Arrangement, costs: CostModel) -> float:
        """Returns the seconds in which a rank packs what it sends and unpacks what it receives."""
        _, codec = codec_of(a.config)
        coding = costs.machine.coding.get(codec, 0.0) if self.bytes_copied else 0.0
        return self.bytes_copied * costs.machine.moving + self.elements * coding

    def update(self, a: Arrangement, costs: CostModel) -> float:
        """Returns the seconds of the optimizer and of the exchanges before and after the update,
        including gathers of updated parameters as far as the next step does not hide them."""
        update = self.exchanges["update"]
        around = (e for e in update if e.during is not Kind.GATHER)
        return self.optimizer(a, costs) + costs.exchanges.total(around) + self.waits.update


def rank_costs(
    a: Arrangement,
    rank: int,
    micro: int,
    compute_of: Sequence[Mapping[Kind, float]],
    costs: CostModel,
) -> RankCosts:
    """Returns a rank's work in a step: its list, the seconds of its passes by stage, and its
    exchanges."""
    compute = {s: compute_of[s] for s in a.model_on(rank).stages}
    by_phase = defaultdict[str, list[Exchange]](list)
    sheet = costs.machine.sheet  # with --sequence-parallel, messages are parts already
    divides = sheet is not None and "pp" in sheet.divides and not a.config.cuts_positions
    on_paper = step(a, rank, a.config.batch_size)
    is_averaged = a.strategy.averages is not None
    gathers = "gathers" if gathers_for_use(a) else "update"
    of_buckets = {Kind.GATHER: gathers, **({Kind.SUM: "gathers"} if a.store.scatters else {})}
    phases = PHASES | of_buckets
    for axis, exchange in ((axis, e) for axis, es in on_paper.exchanges.items() for e in es):
        phase = phases[exchange.during]
        if is_averaged and axis == "dp" and phase != "sums":
            phase = "averages"
        if divides and phase == "messages":  # ranks along tp send a part each
            exchange = exchange._replace(elements=-(-exchange.elements // a.config.tp))
        by_phase[phase].append(exchange)
    numbers = sum(stop - start for start, stop in a.owned_ranges(rank))
    stages = whole_stages(a, micro)[a.mesh.coordinates(rank)["pp"]]
    return RankCosts(stages, compute, by_phase, numbers, on_paper.bytes_copied)


def exposed_in_passes(item: RankCosts, costs: CostModel) -> Mapping[tuple[int, Kind], float]:
    """Returns a dict: (stage, kind of pass) -> the seconds of exchanges that computing does not
    hide."""
    within = item.within_passes(costs.exchanges.seconds)
    if not hides(costs.machine, "tp"):
        return within
    longer = {at: t - item.compute[at[0]].get(at[1], 0.0) for at, t in within.items()}
    return defaultdict(float, {at: max(t, 0.0) for at, t in longer.items()})
