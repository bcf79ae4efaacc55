"""Searches layouts for a model, a cluster and a machine."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, replace
from typing import Any, NamedTuple

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.described.description import HIDDEN
from nnmpi.addons.planning.fastest_sum import with_fastest_sum
from nnmpi.addons.planning.machine import TYPICAL, Machine, Sheet, codec_of
from nnmpi.addons.planning.network_speed import gbit_of_shares
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.run.measurements import processor
from nnmpi.addons.planning.run.paper import MachineRequest, cost_models
from nnmpi.addons.planning.search import Searcher, SearchResult
from nnmpi.addons.planning.step_time import step_time
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.addons.simulator.codecs import CODECS
from nnmpi.options.amounts import amount, plural
from nnmpi.options.config import Config, options
from nnmpi.options.features import OPTIONS
from nnmpi.options.quoting import shown
from nnmpi.parallel import strategies
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import UncutModel, uncut_of

TAKEN = "reduce_dtype", *CODECS.where
SUMS = tuple(o for o in options(("reduce",)) if o.name in TAKEN)
"""The options of gradient sums that a plan does not change, because they change results."""

_MEETINGS = {"sync", *(name for part in OPTIONS.rows() for name in part.meetings)}
MEETINGS = tuple(o for o in options(("sync",)) if o.name in _MEETINGS)
"""Options on when ranks exchange, which a plan does not change."""

SENDING_LESS = tuple(o for o in (*SUMS, *MEETINGS) if o.name != "reduce_dtype")
"""The options by which ranks send less than whole gradients in each step."""


SEARCH_WITHIN = 45.0
"""The default limit of a search's processor time, in seconds (--within)."""

AUTO = "auto"
"""The value of --plan that asks for a measurement of this machine."""

DATA = "DATA"
"""Stands for the data set in a printed command, if a vocabulary was given."""


class NoLayoutFitsError(ValueError):
    """Raised because no layout fits in the memory of a rank."""


def asked(config: Config) -> list[Field[Any]]:
    """Returns those options not at their defaults that make ranks send less than gradients."""
    return [o for o in SENDING_LESS if getattr(config, o.name) != o.default]


class PlanRequest(NamedTuple):
    """A request for a plan, in addition to the options of a run.

    memory        bytes per rank
    machine       the value of --machine
    vocabulary    the number of tokens, in place of a data set
    within        the processor time of a search, in seconds
    """

    ranks: int
    nodes: int
    memory: float | None
    machine: str | None
    vocabulary: int | None = None
    within: float = SEARCH_WITHIN

    @property
    def limit(self) -> float:
        """The most bytes that a layout may need per rank."""
        return math.inf if self.memory is None else self.memory


class FoundLayouts(NamedTuple):
    """The result of a search for layouts, with the config and the request that it answers.

    notes        remarks on how far to trust the figures, a line each
    is_measured  True if the times of the model's parts were measured, not estimated
    """

    config: Config
    request: PlanRequest
    search: SearchResult
    notes: list[str]
    is_measured: bool

    @property
    def title(self) -> str:
        """Returns a title: the model, the ranks and the nodes of the plan."""
        nodes = f" on {plural(self.request.nodes, 'node')}" if self.request.nodes > 1 else ""
        words = [self.config.model, "on", plural(self.request.ranks, "rank") + nodes]
        for o in asked(self.config):
            words += [f"--{o.name.replace('_', '-')}", str(getattr(self.config, o.name))]
        return " ".join(words)


class PlanModels(NamedTuple):
    """The objects that predict the memory of layouts and their time, and remarks on how far to
    trust the predictions, a line each."""

    arranger: Arranger
    costs: CostModel
    notes: list[str]


def on_paper(config: Config, request: PlanRequest, machine: MachineRequest) -> PlanModels:
    """Returns what predicts layouts for a config, on a cluster that need not exist."""
    planned: Any = {"plan": AUTO}
    strategies.check(replace(config, **planned), request.ranks)
    _, uncut = uncut_of(config, request.vocabulary)
    cluster = Cluster.on_paper(request.ranks, request.nodes, machine.device)
    return plan_models(request, uncut, cluster, machine.machine)


def plan_models(
    request: PlanRequest, uncut: UncutModel, cluster: Cluster, machine: Machine
) -> PlanModels:
    """Returns the objects that predict layouts of a model, on nodes like `machine`."""
    arranger, costs = cost_models(uncut, cluster, machine)
    return PlanModels(arranger, costs, [*_notes(uncut.config, request, machine, costs.model)])


def search(request: PlanRequest, models: PlanModels) -> FoundLayouts:
    """Finds the fastest layouts; raises ValueError if none is possible or fits in memory."""
    arranger, costs, limit = models.arranger, models.costs, request.limit
    result = Searcher(arranger, costs, limit, within=request.within).search()
    _check_found(arranger.plain, request, result)
    result, notes = _prefer_dp(result, limit, costs.machine.spread)
    if unpriced := result.counts.unpriced:
        notes.append(
            f"the search ended after {request.within:g} s of processor time: {unpriced:,} layouts "
            "that may be faster, by their bound, were not priced; give more --within"
        )
    if request.vocabulary is not None:
        notes.append(
            f"no data were given: in the command, put data of {request.vocabulary:,} tokens in the "
            f"place of {DATA}"
        )
    notes = [*models.notes, *notes]
    return FoundLayouts(
        models.arranger.plain, request, result, notes, models.costs.model.is_measured
    )


class NetworkNeed(NamedTuple):
    """The network that a layout needs: by share of a step, such as "50%", the Gbit/s between nodes
    at which computing takes that share (None: no bandwidth suffices)."""

    layout: str
    seconds: float
    gbit: Mapping[str, float | None]


def network_needs(layouts: FoundLayouts, models: PlanModels) -> Iterator[NetworkNeed]:
    """Yields the network that some layouts need: the fastest, the fastest along dp alone and, if
    options make ranks send less than whole gradients, data parallelism without these options."""
    arranger, plain = models.arranger, layouts.config
    along_dp = layouts.search.pure.get("dp")
    for planned in dict.fromkeys(filter(None, (layouts.search.best[0], along_dp))):
        yield _need(planned.flags, arranger.arranged(planned.layout), models.costs)
    if asked(plain):
        usual: dict[str, Any] = {o.name: o.default for o in SENDING_LESS}
        with suppress(ValueError):  # there may be too few samples for so many ranks
            a = arranger.arranged_by(replace(plain, **usual))
            yield _need("data parallelism", a, models.costs)


def _need(name: str, a: Arrangement, costs: CostModel) -> NetworkNeed:
    a = with_fastest_sum(a, costs.exchanges)
    return NetworkNeed(name, step_time(a, costs).seconds, gbit_of_shares(a, costs))


def _prefer_dp(
    result: SearchResult, memory: float, spread: float
) -> tuple[SearchResult, list[str]]:
    """Puts plain data parallelism first if it fits and the fastest layout is hardly faster: by a
    smaller share than `spread`, by which two measurements differ. Returns also a note on the
    change, if any."""
    best, plain = result.best[0], result.pure.get("dp")
    if plain is None or plain == best or plain.nbytes > memory:
        return result, []
    lead = plain.time.seconds / best.time.seconds - 1
    if lead >= spread:
        return result, []
    layouts = [plain, *(planned for planned in result.best if planned != plain)][: len(result.best)]
    note = (
        f"{best.flags} is predicted to be {lead:.1%} faster than {plain.flags}, but two "
        f"measurements differ by {spread:.0%}, so {plain.flags} comes first; for a clear result, "
        "measure while no other program runs"
    )
    return result._replace(best=layouts), [note]


def _check_found(config: Config, request: PlanRequest, result: SearchResult) -> None:
    """Raises ValueError if the search has found no layout that fits."""
    if result.best:
        return
    if result.least and request.memory is not None:
        least, unpriced = result.least, result.counts.unpriced
        looked = f" of those looked at in {request.within:g} s" if unpriced else ""
        longer = "more --within, " if unpriced else ""
        raise NoLayoutFitsError(
            f"no layout of {plural(request.ranks, 'rank')} fits into {amount(request.memory)} per "
            f"rank: {least.layout.flags} takes least{looked}, {amount(least.nbytes)}; use {longer}"
            f"--memory {amount(least.nbytes * 1.01).replace(' ', '')} if ranks have that much, "
            f"more --ranks, or a smaller --batch-size than {config.batch_size}"
        )
    reasons = "".join(f" ({why})" for why in [*result.refused][:1])
    raise ValueError(
        f"{config.model} cannot be divided among {plural(request.ranks, 'rank')} so that each has "
        f"a sample of a batch of {config.batch_size}{reasons}; use fewer --ranks, a number with "
        "small divisors, or a larger --batch-size"
    )


def _notes(
    config: Config, request: PlanRequest, machine: Machine, times: ModelTimes
) -> Iterator[str]:
    """Yields remarks for the user on how far to trust the predicted figures."""
    a_node = -(-request.ranks // request.nodes)
    data = config.data if request.vocabulary is None else DATA
    how = f"mpirun -n {a_node} python -m nnmpi.measure --model {config.model} --data {data}"
    if request.machine is None:
        yield (
            "figures of a typical machine, not of this one: compare layouts, and take seconds as "
            f"a guess; measure by {how} --out machine.json, and give --machine machine.json"
        )
        return
    file = shown(request.machine)
    if machine.sheet is not None:
        yield from _described(machine, machine.sheet)
        return
    if machine.spread:
        yield machine.doubt
    if machine.missing:
        yield (
            f"{file} lacks what there was no time to measure, which is estimated: "
            f"{', '.join(machine.missing.values())}; measure by {how} --within 10m --out FILE.json"
        )
    if machine.cpu != processor():
        yield f"{file} was measured on {machine.cpu}, and this is {processor()}: times may differ"
    yield from _not_measured(config, data, machine, times, file, how)
    if request.nodes > 1 and machine.far == TYPICAL.far:
        rate = 8e-9 / machine.far.beta
        yield f"links between nodes are guessed: {rate:.3g} Gbit/s, as `far` in {file}"
    if machine.ranks < a_node:
        yield (
            f"{file} was measured with {plural(machine.ranks, 'rank')} at a time, and a node has "
            f"{a_node}: the figures leave out that these share its memory and caches"
        )


def _not_measured(
    config: Config, data: str, machine: Machine, times: ModelTimes, file: str, how: str
) -> Iterator[str]:
    """Yields remarks on what a run with `data` needs and the file of a measured machine does not
    have; `how` is the command that measures it."""
    if not times.is_measured:
        yield (
            f"{file} does not have {config.model} with {data} in {config.dtype}: its units "
            f"are estimated from {machine.speed / 1e9:.3g} billion multiplications a second; "
            f"measure by {how} --out FILE.json"
        )
    if config.optimizer not in machine.updates:
        known = ", ".join(machine.updates)
        yield f"{file} does not have {config.optimizer}, which counts as the slowest of {known}"
    option, codec = codec_of(config)
    if codec and codec not in machine.coding:
        yield (
            f"{file} does not have --{option} {codec}, which counts as reading and "
            f"writing arrays only: measure by {how} --{option} {codec} --out FILE.json"
        )


def _described(machine: Machine, sheet: Sheet) -> Iterator[str]:
    """Yields remarks on a machine of a data sheet, and on hidden exchanges."""
    yield f"{machine.cpu} is described by data sheets and assumed shares of them, not measured"
    for what in sheet.hides:
        yield f"{HIDDEN[what]} are hidden behind computing, as its description says"
    if "pp" in sheet.divides:
        yield "ranks along tp send a part each of what goes to the next stage, as it says"
    if sheet.of_micro_batch or sheet.of_parameter:
        yield (
            f"devices wait for the host for {1e3 * sheet.of_micro_batch:g} ms in each micro-batch, "
            f"and {1e6 * sheet.of_parameter:g} us for each parameter, as it says"
        )
    if (sheet.tile, sheet.at_once) != (1, 1):
        yield (
            f"products are computed in tiles of {sheet.tile} x {sheet.tile}, {sheet.at_once} at a "
            "time, as it says"
        )
