"""Finds the fastest way to divide each layer among ranks along tp: for example, convolutions by
samples and linear layers by channels.

The price of a way is the sum of these seconds:

passes       of this rank's part of the layer, with the whole batch as one micro-batch
messages     within these passes
parameters   gradient sums over dp, and the update, of the rank's part of each parameter
             gradient sums along tp, where each rank has a term of a whole parameter's gradient
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from math import ceil

import numpy as np

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.layer_messages import of_layer, passes_of, summed
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.tensor.choices import NodeChoice
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.possible import follows, possible
from nnmpi.parallel.tensor.sharding import describe
from nnmpi.parallel.tensor.ways import PARTIAL_GRADIENT, POSITIONS, SAMPLE_CUT

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""Matches a number in the path of a layer: the index of a block, or of a layer in a Sequential."""


class LayerWays:
    """Finds the fastest way to divide each layer along tp, for sizes of dp and tp."""

    def __init__(self, arranger: Arranger, costs: CostModel) -> None:
        self._arranger, self._costs = arranger, costs
        self._found = dict[tuple[int, int], str]()

    def of(self, candidate: Candidate) -> str:
        """Returns the fastest ways to divide layers along tp, as a value of --layout. Returns "" if
        --tp alone chooses the same ways, if all layers are divided by samples, or if the layout has
        other axes than dp and tp.

        Models of sequences also get "": their activations can be cut along positions between
        layers, which sends as many bytes as a cut by samples.
        """
        if candidate.tp == 1 or candidate.cp * candidate.pp > 1 or candidate.sequence_parallel:
            return ""
        key = candidate.dp, candidate.tp
        if key not in self._found:
            try:
                self._found[key] = self._search(Candidate(dp=candidate.dp, tp=candidate.tp))
            except ValueError:  # the model cannot be divided among this many ranks
                self._found[key] = ""
        return self._found[key]

    @cached_property
    def _of_positions(self) -> bool:
        return has_positions(self._arranger.graph)

    def _search(self, plain: Candidate) -> str:
        if self._of_positions:
            return ""
        prices = _Prices(self._arranger.without_parameters(plain), self._costs, plain)
        sharding = self._arranger.fastest_ways(plain, prices.seconds)
        usual = self._arranger.sharding(plain)
        is_dp, nodes = {*sharding.ways.values()} <= {"samples"}, self._arranger.graph.nodes
        if is_dp or sharding.ways == usual.ways:
            return ""
        free = {layer.path for layer in sharding.layers if not follows(nodes[layer.node])}
        return as_layout({path: how for path, how in sharding.ways.items() if path in free})


class _Prices:
    """Computes the seconds of a layer in a step if it is divided along tp in a given way, for a
    layout along dp and tp, `plain`, whose arrangement `a` has the ways that --tp chooses."""

    def __init__(self, a: Arrangement, costs: CostModel, plain: Candidate) -> None:
        self._a, self._exchanges, model = a, costs.exchanges, costs.model
        self._samples = ceil(a.config.batch_size / plain.dp)
        few = ceil(self._samples / plain.tp)
        self._whole = self._of_nodes(model.units, model.whole(self._samples))
        self._few = self._of_nodes(model.units, model.whole(few))
        self._parts = self._of_nodes(model.units, model.of(a.sharding, plain, self._samples))
        numbers = sum(v.size for v in a.graph.variables if v.is_trained)
        self._of_term, sums = (
            costs.exchanges.seconds(summed(a, a.mesh.group(0, axis), numbers)) / numbers
            for axis in ("tp", "dp")
        )
        # replicas that send less do so seldom, or send much less
        averages = a.strategy.averages
        every = averages.every(a.config) if averages else 1
        sums *= 0 if asked_kind(a.config).packs else 1 / every
        self._of_number = sums + costs.machine.updates[a.config.optimizer]

    def _of_nodes(self, units: Sequence[Unit], times: np.ndarray) -> list[float]:
        """Returns each node's part of its unit's seconds, in proportion to multiplications."""
        graph = self._a.graph
        seconds = [0.0] * len(graph.nodes)
        for unit, of_unit in zip(units, times.sum(axis=1).tolist(), strict=True):
            works = [work(graph, graph.nodes[k]) for k in unit.nodes]
            for k, work_of_node in zip(unit.nodes, works, strict=True):
                seconds[k] = of_unit * work_of_node / max(sum(works), 1)
        return seconds

    def seconds(self, k: int, choice: NodeChoice) -> float:
        """Returns the seconds of node k in a step: passes, messages, sums and update."""
        return self._passes(k, choice) + self._sends(k, choice) + self._of_parameters(choice)

    def _passes(self, k: int, choice: NodeChoice) -> float:
        how = choice.way.pattern.how
        if choice.way.of_layout:
            return self._whole[k] * _largest_part(choice.bounds)
        follows_samples = choice.output is SAMPLE_CUT and not choice.way.rebuilds
        if follows_samples or how == "samples":
            return self._few[k]
        is_cut = choice.bounds or choice.output is not None
        return self._parts[k] if is_cut else self._whole[k]

    def _sends(self, k: int, choice: NodeChoice) -> float:
        """Returns the seconds of the messages in the passes of node k, divided by `choice`."""
        if not choice.way.pattern.sends and not choice.gathers:
            return 0.0
        a, seconds = self._a, 0.0
        layer = describe(a.graph, k, choice, a.sharding.ranks, "")
        for message in layer.sends:
            sends = of_layer(a, a.mesh.size - 1, layer, message, self._samples)
            seconds += len(passes_of(message)) * self._exchanges.total(sends)
        return seconds

    def _of_parameters(self, choice: NodeChoice) -> float:
        """Returns the seconds to sum the gradients of a node's parameters and to update them."""
        seconds, variables = 0.0, self._a.graph.variables
        for v, cut in choice.variables:
            if variables[v].is_trained:
                of_number = self._of_number * (1.0 if cut is None else _largest_part(cut.bounds))
                seconds += variables[v].size * (
                    of_number + self._of_term * (cut is PARTIAL_GRADIENT)
                )
        return seconds


def has_positions(graph: Graph) -> bool:
    """True if some layer can compute its output (positions, channels) for some of the positions."""
    made = (
        graph.edges[node.outputs[0]].sample
        for node in graph.nodes
        for way in possible(graph, node, (POSITIONS,))
        if way.output is POSITIONS
    )
    return any(len(sample) == 2 for sample in made)


def _largest_part(bounds: Bounds) -> float:
    """Returns the largest share of a tensor divided at `bounds`; 1 if whole."""
    return max(b - a for a, b in pairwise(bounds)) / bounds[-1] if bounds else 1.0


def as_layout(ways: Mapping[str, str]) -> str:
    """Converts ways, such as {"h.0.mlp.c_fc": "column"}, to a value of --layout. Layers whose paths
    differ only in numbers become one pattern if all are divided in the same way."""
    by_pattern = dict[str, str]()
    for path, how in ways.items():
        pattern = NUMBER.sub("*", path)
        alike = {other for name, other in ways.items() if fnmatchcase(name, pattern)}
        by_pattern[path if alike - {how} else pattern] = how
    return ",".join(f"{path}={how}" for path, how in by_pattern.items())
