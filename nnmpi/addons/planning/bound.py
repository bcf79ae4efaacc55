"""Lower bounds on the seconds and bytes of a layout, computed without making its arrangement.

    rank r along pp         when its passes begin and end, by its schedule (`rank_ends`)
    sums between nodes      an all-reduce of n bytes over k nodes sends 2 (k - 1) / k n on each link
    update                  each element is updated by one rank, or by several

Latency, waiting and sums within a node are left out: no formula gives them before ranks are
arranged. `with_messages` also counts exchanges within passes. The bounds are separate formulas,
since there is no log of a step for `step_time` yet; `test_bounds_rise_to_what_a_layout_takes`
compares the two.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log2
from operator import add
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.bucket_bound import BucketBounds
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.kept_bytes import KeptBytes
from nnmpi.addons.planning.layer_messages import in_passes
from nnmpi.addons.planning.list_times import hides
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.rank_ends import rank_ends
from nnmpi.addons.planning.step_time import passes_of_stages
from nnmpi.arrays import dtypes
from nnmpi.arrays.dtypes import types_of
from nnmpi.nn.recompute import recomputed_with
from nnmpi.optim.of_options import state_arrays_of
from nnmpi.parallel.arrangement.arrange import DEFAULT_MB, MB, strategy_of
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.mesh import REPLICAS
from nnmpi.parallel.step_list.values import SLOTS
from nnmpi.schedules.op import Kind
from nnmpi.schedules.placement import Place

ROUNDING = 1 - 1e-9
"""A factor that lowers each bound: sums of equal terms in another order may differ by rounding."""


def _ways(candidate: Candidate) -> tuple[bool, str, str]:
    """Returns the options of a layout that decide what of each layer a rank along tp computes."""
    return candidate.sequence_parallel, candidate.layout, candidate.recompute


class _RankElements(NamedTuple):
    """How many elements of trained parameters a rank has, before tp divides them.

    all      in total
    modules  in each module, the largest first
    last     in the parameter whose gradient is complete last; 0 if other stages share it
    """

    all: int
    modules: list[int]
    last: int


class LowerBounds:
    """Computes lower bounds on the seconds and bytes of the layouts of one model on one cluster,
    without arranging ranks. Methods raise ValueError if the model cannot be divided so."""

    def __init__(self, arranger: Arranger, costs: CostModel) -> None:
        self._arranger, self._costs = arranger, costs
        self._dtype = dtypes.on_paper(arranger.plain.dtype)
        self._itemsize = self._dtype.itemsize
        # a bucket has a slot of its own, or there are as many slots as what runs again takes
        graph, plain = arranger.graph, arranger.plain
        # without ZeRO, replicas divide the update only in memory of a node, or leave it to servers
        has_own_store = strategy_of(plain).store or asked_kind(plain).packs
        self._may_share_updates = bool(has_own_store) or not arranger.cluster.has_devices
        self._has_many_slots = graph.may_differ or bool(graph.again)
        self._passes = dict[tuple[Any, ...], np.ndarray]()
        self._ends = dict[Candidate, float]()
        self._modules = dict[tuple[Place, bool], list[_RankElements]]()
        self._on_one_node = dict[tuple[int, ...], bool]()
        self._messages = dict[tuple[Any, ...], np.ndarray]()
        self._sums = dict[tuple[Any, ...], tuple[float, float]]()
        self._kept = KeptBytes(arranger)
        self._buckets = BucketBounds(arranger, costs.exchanges)

    def seconds(self, candidate: Candidate) -> float:
        """A lower bound on a step's seconds, of passes and update, without communication."""
        key = candidate._replace(zero=0)
        if key not in self._ends:
            ends = rank_ends(candidate, self._stages(candidate), self._count(candidate)).end
            self._ends[key] = float(ends.max())
        return ROUNDING * (self._ends[key] + self._fixed_seconds(candidate))

    def with_sums(self, candidate: Candidate) -> float:
        """A lower bound on a step's seconds, with all-reduces of gradients between nodes."""
        return self._until_updated(candidate, self._stages(candidate))

    def with_messages(self, candidate: Candidate) -> float:
        """A lower bound on a step's seconds, as `with_sums`, and with messages of tp and cp."""
        passes = self._stages(candidate) + self._in_passes(candidate)
        return self._until_updated(candidate, passes)

    def with_buckets(self, candidate: Candidate) -> float:
        """A lower bound on a step's seconds in which ZeRO 2 or 3 scatters buckets; else 0."""
        if candidate.zero < 2:
            return 0.0
        passes = self._stages(candidate) + self._in_passes(candidate)
        start, busy, _, _ = rank_ends(candidate, passes, self._count(candidate))
        exposed = self._buckets.exposed(candidate, self._count(candidate), busy.tolist())
        ends = start + busy + exposed
        return ROUNDING * (float(ends.max()) + self._fixed_seconds(candidate))

    def _until_updated(self, candidate: Candidate, passes: np.ndarray) -> float:
        """A lower bound on the seconds until the update ends; `passes` is (stages, 3): F, B, I."""
        count, mesh = self._count(candidate), self._arranger.mesh(candidate)
        along = mesh.group(mesh.size - 1, "pp")
        of_ranks, ends, gathers = rank_ends(candidate, passes, count), list[float](), [0.0]
        for place, start, end, last, held in zip(
            along,
            *(times.tolist() for times in (of_ranks.start, of_ranks.end, of_ranks.last)),
            self._modules_of(candidate),
            strict=True,
        ):
            half, last_bucket = self._halves(candidate, place, held)
            times = count * (1 + 2 * (candidate.zero == 3) * self._gathered(candidate, held))
            within = start + times * half if candidate.zero > 1 else 0.0
            behind = 0 if candidate.zero > 1 else 1 if candidate.zero else 2
            # no pass hides the last scatter, nor the first gather of ZeRO 3
            alone = (candidate.zero > 1) * (candidate.zero - 1) * last_bucket
            summed = max(behind * half - last, behind * last_bucket)
            ends.append(max(end + alone, within) + summed)
            # without a description, the next step hides gathers behind the update
            is_described = self._costs.machine.sheet is not None
            is_hidden = not is_described or hides(self._costs.machine, "zero1")
            is_exposed = candidate.zero in (1, 2) and not is_hidden
            gathers.append(half if is_exposed else 0.0)
        return ROUNDING * (max(ends) + max(gathers) + self._fixed_seconds(candidate))

    def nbytes(self, candidate: Candidate) -> float:
        """A lower bound on the bytes of values, gradients and optimizer state of any rank."""
        return ROUNDING * max(self._state(candidate))

    def with_activations(self, candidate: Candidate) -> float:
        """A lower bound on the most peak bytes of a rank: `nbytes` and activations."""
        kept = self._kept.of_ranks(candidate, self._sizes(candidate)[0])
        return ROUNDING * float(max(map(add, self._state(candidate), kept.tolist())))

    def _state(self, candidate: Candidate) -> list[float]:
        """A lower bound on the bytes of values, gradients and state of each rank along pp."""
        k, types = len(state_arrays_of(self._arranger.plain)), types_of(self._dtype)
        copies = (2, 2, 1, 0)[candidate.zero]
        # with masters in float32, a rank with ZeRO 3 has values in 16 bits only in its slots
        narrow = 2 - copies - (types.is_mixed and candidate.zero == 3)
        wide = types.masters.itemsize * (k + types.is_mixed)
        parts = candidate.replicas if candidate.zero or self._may_share_updates else 1
        shared = (narrow * self._itemsize + wide) / parts
        of_element = (copies * self._itemsize + shared) / candidate.tp
        return [held.all * of_element for held in self._modules_of(candidate)]

    def _gathered(self, candidate: Candidate, held: _RankElements) -> float:
        """For ZeRO 3: a lower bound on the share of its parameters, from 0 to 1, that a rank
        gathers in the forward passes of a micro-batch, and again in the backward passes: buckets
        that are still in memory from their last use are not gathered again."""
        config = self._arranger.plain
        if self._has_many_slots or candidate.recompute == "block":
            return 0.0
        mb = DEFAULT_MB if config.bucket_mb is None else config.bucket_mb
        longest = mb * MB / self._itemsize + held.modules[0] / candidate.tp
        stages = len(self._arranger.division(candidate).stages) // candidate.pp
        return max(1 - stages * SLOTS * longest * candidate.tp / held.all, 0.0)

    # ---- what it is made of

    def _count(self, candidate: Candidate) -> int:
        """Returns the number of micro-batches in a step of this layout."""
        return min(candidate.micro_batches, self._arranger.plain.batch_size)

    def _sizes(self, candidate: Candidate) -> tuple[int, int]:
        """Returns the samples of the smallest and the largest micro-batch, on the rank along dp
        with most samples."""
        batch, count = self._arranger.plain.batch_size, self._count(candidate)
        return ceil(batch // count / candidate.dp), ceil(ceil(batch / count) / candidate.dp)

    def _fixed_seconds(self, candidate: Candidate) -> float:
        """Returns the seconds of a step outside its passes: the update, which replicas divide with
        ZeRO or if all are on one node, and the machine's overheads."""
        machine = self._costs.machine
        parts = candidate.replicas if candidate.zero or self._is_near(candidate) else 1
        numbers = self._most_elements(candidate) / parts
        update = numbers * machine.updates[self._arranger.plain.optimizer]
        return update + machine.step + self._count(candidate) * machine.micro_batch / candidate.pp

    def _most_elements(self, candidate: Candidate) -> float:
        """Returns the number of elements of trained parameters on the rank that has the most."""
        return max(held.all for held in self._modules_of(candidate)) / candidate.tp

    def _is_near(self, candidate: Candidate) -> bool:
        """True if the last rank and the other replicas of its part are on one node."""
        if candidate.shape not in self._on_one_node:
            mesh = self._arranger.mesh(candidate)
            group = mesh.group(mesh.size - 1, *REPLICAS)
            self._on_one_node[candidate.shape] = self._arranger.cluster.on_one_node(group)
        return self._on_one_node[candidate.shape]

    def _stages(self, candidate: Candidate) -> np.ndarray:
        """Returns each stage's seconds of F, B and I without exchanges, shape (stages, 3)."""
        model, (_, samples) = self._costs.model, self._sizes(candidate)
        key = (
            *self._arranger.division_key(candidate),
            candidate.tp,
            candidate.cp,
            *_ways(candidate),
            samples,
        )
        if key not in self._passes:
            of_units = model.of(self._arranger.sharding(candidate), candidate, samples)
            begins = [stage.nodes.start for stage in self._arranger.division(candidate).stages]
            passes = passes_of_stages(model, of_units, begins)
            self._passes[key] = np.array([[t[Kind.F], t[Kind.B], t[Kind.I]] for t in passes])
        return self._passes[key]

    def _modules_of(self, candidate: Candidate) -> list[_RankElements]:
        """Returns, from a cache, how many trained elements each rank along pp has, by module."""
        division, graph = self._arranger.division(candidate), self._arranger.graph
        key = self._arranger.division_key(candidate)
        if key not in self._modules:
            self._modules[key], tied = [], division.tied(graph)
            for r in range(candidate.pp):
                trained = [graph.variables[v] for v in division.trained(graph, r)]
                modules = Counter[str]()
                for variable in trained:
                    modules[variable.path.rpartition(".")[0]] += variable.size
                last = 0 if trained[0].path in tied else trained[0].size
                largest_first = sorted(modules.values(), reverse=True)
                self._modules[key].append(_RankElements(modules.total(), largest_first, last))
        return self._modules[key]

    def _in_passes(self, candidate: Candidate) -> np.ndarray:
        """Returns the seconds of exchanges along tp and cp in the passes F, B and I of each stage,
        an array (stages, 3).

        They are computed from a layout with one stage. All are 0 if `--order` does not begin with
        tp: then ranks along tp and cp may be on other nodes in that layout than in this one.
        """
        nodes = [stage.nodes for stage in self._arranger.division(candidate).stages]
        if hides(self._costs.machine, "tp") or not self._arranger.plain.order.startswith("tp"):
            return np.zeros((len(nodes), 3))
        if candidate.tp * candidate.cp == 1:
            return np.zeros((len(nodes), 3))
        until = min(  # of the smallest micro-batch, which may take longer than the largest
            (self._of_samples(candidate, samples) for samples in {*self._sizes(candidate)}),
            key=lambda seconds: float(seconds[-1].sum()),
        )
        return np.array([until[part.stop] - until[part.start] for part in nodes])

    def _of_samples(self, candidate: Candidate, samples: int) -> np.ndarray:
        """Returns the seconds of exchanges along tp and cp in the passes F, B and I as cumulative
        sums: row k has those of graph nodes 0 to k - 1."""
        key = candidate.tp, candidate.cp, *_ways(candidate), samples
        if key not in self._messages:
            graph = self._arranger.graph
            unpiped = candidate._replace(
                dp=candidate.dp * candidate.pp, pp=1, schedule="1f1b", zero=0
            )
            a = self._arranger.without_parameters(unpiped._replace(recompute="none"))
            seconds: np.ndarray = np.zeros((len(graph.nodes) + 1, 3))
            for nodes, passes, exchange in in_passes(a, a.mesh.size - 1, samples):
                taken = self._costs.exchanges.seconds(exchange)
                of_passes = [taken * (kind in passes) for kind in (Kind.F, Kind.B, Kind.I)]
                seconds[np.array(nodes) + 1] += of_passes
            again = [bool(recomputed_with(node, candidate.recompute)) for node in graph.nodes]
            seconds[1:, 1:] += np.array(again)[:, None] * seconds[1:, :1]
            self._messages[key] = np.cumsum(seconds, axis=0)
        return self._messages[key]

    def _halves(self, candidate: Candidate, place: int, held: _RankElements) -> tuple[float, float]:
        """Returns lower bounds on the seconds of two reduce-scatters between nodes: of the
        gradients of all parameters of the rank with number `place`, and of its bucket 0, which is
        summed last. All-gathers take as long."""
        key = candidate.shape, self._arranger.division_key(candidate), candidate.zero > 0, place
        if key not in self._sums:
            group = self._arranger.mesh(candidate).group(place, *REPLICAS)
            every, last = (
                self._half_a_sum(group, [n / candidate.tp for n in numbers], candidate.zero > 0)
                for numbers in (held.modules, [held.last])
            )
            self._sums[key] = every, last
        return self._sums[key]

    def _half_a_sum(self, group: tuple[int, ...], modules: Sequence[float], by_ring: bool) -> float:
        """A lower bound on the seconds to reduce-scatter, or to all-gather, parameters between the
        nodes of `group`; `modules` has the number of elements of each module.

        With `by_ring`, each of p ranks sends (p - 1) / p of the bytes, and a bucket takes p - 1
        rounds; otherwise this holds for p nodes, and a bucket takes at least log2(p) / 2 rounds. A
        bucket ends with the module that fills it, so it is shorter than the bucket size plus the
        longest module: that bounds the number of buckets from below.
        """
        links, config = self._costs.exchanges.links(group), self._arranger.plain
        if strategy_of(config).averages or asked_kind(config).packs:  # less is sent
            return 0.0
        if links.node_count == 1:
            return 0.0
        parts, numbers = len(group) if by_ring else links.node_count, sum(modules)
        sent = numbers * self._itemsize * (parts - 1) / parts * links.sharing
        mb = DEFAULT_MB if config.bucket_mb is None else config.bucket_mb
        lengths = accumulate(mb * MB / self._itemsize + n for n in modules)
        buckets = sum(length < numbers for length in lengths) + 1
        rounds = buckets * (parts - 1 if by_ring else log2(parts) / 2)
        return sent * links.link.beta + rounds * links.link.alpha
