"""shard(graph, ranks) divides a model among ranks so that they send as little as possible.

    state        the cuts of the activations that are still to be read: by this node or a later one
    transition   a choice for the node (such as column), which leads from one state to the next

A forward sweep finds all reachable states, and a backward sweep the least that must still be sent
from each of them. So the plan (a choice for each node) is exact: no other plan sends less. Of plans
that send equally much, the one whose choices are listed first is taken. With sequence parallelism,
and where a layout names an axis of an add-on, it is the plan that leaves the fewest activations
whole on all ranks, and of these the one that sends least. If the user says how to divide some
layers, the search decides the other layers and what is between them.

A node may have more than `MOST_STATES` states, for example after many parallel branches. Then only
the cheapest ones are followed, and another plan might send less.
"""

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from nnmpi.nn.graph import Graph, Node
from nnmpi.parallel.tensor.choices import NodeChoice, NodeChoices, PlanCost, channels
from nnmpi.parallel.tensor.constraints import (
    UNCONSTRAINED,
    Constraints,
    refuse_positions,
    wanted_ways,
)
from nnmpi.parallel.tensor.ops import even_bounds
from nnmpi.parallel.tensor.possible import keeps_cut, takes_samples
from nnmpi.parallel.tensor.sharding import (
    ShardedLayer,
    Sharding,
    describe,
    divide_modules,
    is_listed,
)
from nnmpi.parallel.tensor.ways import (
    ON_ONE_RANK,
    PARTIAL_GRADIENT,
    POSITIONS,
    SAMPLES,
    WHOLE,
    AxisCut,
    axis_of_way,
)

# ---- the search

MOST_STATES = 200
"""The most states that are followed: the cheapest, and the least cut."""

Subject = tuple[str, Any]
"""("edge", n), ("variable", n) or ("module", name), whose cut matters later."""

State = frozenset[tuple[Subject, Any]]
"""The cut of each subject that later nodes depend on; an edge that is not listed is whole."""

START: State = frozenset()

KnownChoices = dict[tuple[AxisCut | None, ...], list[tuple[NodeChoice, dict[Subject, Any]]]]
"""By the cuts of a node's inputs: the choices for the node, each with the facts that it fixes."""


class Transition(NamedTuple):
    """A choice for one node, as a step of the search: it leads from the state `before` to the state
    `after`. `total` is the cost of the best plan for the whole model that makes it."""

    before: State
    choice: NodeChoice
    after: State
    total: PlanCost


def shard(
    graph: Graph,
    ranks: int,
    whole_output: bool = False,
    sequence: bool = False,
    constraints: Constraints = UNCONSTRAINED,
) -> Sharding:
    """Returns the division of a model that sends the fewest elements, the same on every rank.

    With `whole_output` every rank gets all scores, as most losses need them; otherwise they may
    stay cut along classes. With `sequence`, activations that would be whole on every rank are cut
    along positions where possible. `constraints` says what --layout asks for. Raises ValueError if
    a layer has fewer channels than there are ranks, or if a model has nothing that is to be cut.
    """
    search = _Search(graph, ranks, whole_output, sequence, constraints)
    transitions = search.transitions()
    edges, variables, terms = dict[int, AxisCut](), dict[int, AxisCut](), set[int]()
    layers, state = list[ShardedLayer](), START
    for k, of_node in enumerate(transitions):
        taken = min((t for t in of_node if t.before == state), key=attrgetter("total"))
        state, choice = taken.after, taken.choice
        if choice.output is not None:
            edges |= dict.fromkeys(graph.nodes[k].outputs, choice.output)
        variables |= {v: cut for v, cut in choice.variables if cut not in (None, PARTIAL_GRADIENT)}
        terms |= {v for v, cut in choice.variables if cut is PARTIAL_GRADIENT}
        if k in search.owned.calls:
            layers += search.owned.calls[k].layers
        elif is_listed(graph, graph.nodes[k], choice):
            why = search.why(k, of_node, taken)
            layers.append(describe(graph, k, choice, ranks, why))
    if sequence and not any(layer.position_bounds for layer in layers):
        refuse_positions(graph, ranks)
    constraints.check(graph, ranks, any(layer.way is not WHOLE for layer in layers))
    cut = edges.get(graph.outputs[0])
    output = cut.bounds if cut else None
    return Sharding(
        ranks, tuple(layers), edges, variables, output, frozenset(terms), owned=search.owned
    )


class _Search:
    """A search for the best division of a model's layers among `ranks` ranks: of those that
    `constraints` allow, the one with the lowest cost (elements that are sent, or seconds)."""

    def __init__(
        self, graph: Graph, ranks: int, whole_output: bool, sequence: bool, constraints: Constraints
    ) -> None:
        self.graph, self.ranks, n = graph, ranks, len(graph.nodes)
        self.constraints, self.counts_whole = constraints, sequence or bool(constraints.named)
        self.cuts = [POSITIONS] * sequence + constraints.cuts
        self.choices = NodeChoices(graph, ranks, self.cuts, constraints.per_step)
        self.owned = divide_modules(graph, ranks)
        self.wanted = wanted_ways(graph, constraints.ways, self.owned.nodes)
        uses = Counter(v for node in graph.nodes for v in node.variables)
        self.ways = self.choices.ways
        pairs = zip(graph.nodes, self.ways, strict=True)
        calls = Counter(node.name for node, ways in pairs if any(way.rebuilds for way in ways))
        # after its last use a subject leaves the state, so that few states differ
        self.last: dict[Subject, int] = {}
        for k, node in enumerate(graph.nodes):
            self.last |= {("edge", e): k for e in node.inputs}
            self.last |= {("variable", v): k for v in node.variables if uses[v] > 1}
            if node.layer is not None and calls[node.name] > 1:
                self.last["module", node.name] = k
        self.last |= {("edge", e): n for e in graph.outputs}
        self.may_stay = not whole_output and len(graph.outputs) == 1
        self.needed = self._needed()

    def _needed(self) -> list[str]:
        """Returns why each edge is needed whole; "" if it may be cut."""
        graph = self.graph
        reasons = ["its shape is read" * (e in graph.shapes) for e in range(len(graph.edges))]
        for e in graph.outputs:
            reasons[e] = reasons[e] or "the output is whole" * (not self.may_stay)
        for node, possible_ways in reversed([*zip(graph.nodes, self.ways, strict=True)]):
            behind = next((reasons[e] for e in node.outputs if reasons[e]), "")
            needs_whole = f"{' '.join(dict.fromkeys((node.kind, node.name)))} takes it whole"
            if node.layer is None:
                needed = behind if keeps_cut(graph, node) else needs_whole
            else:
                ways = [way for way in possible_ways if way.input is not None]
                ends = any(w.output is None or w.pattern.divides or w.of_layout for w in ways)
                ends |= SAMPLES in self.cuts and takes_samples(graph, node)
                needed = "" if ends else behind if ways else needs_whole
            for e in node.inputs:
                reasons[e] = reasons[e] or needed
        return reasons

    def transitions(self) -> list[list[Transition]]:
        """Returns, for each node, the transitions that are part of some plan for the whole model;
        raises ValueError if there is no plan. After the forward sweep the `total` of a transition
        is the least cost up to it, and after the backward sweep that of the best plan through
        it."""
        reached = {START: PlanCost()}
        of_nodes: list[list[Transition]] = []
        for k in range(len(self.graph.nodes)):
            of_nodes.append([])
            least: dict[State, PlanCost] = {}
            known_choices = KnownChoices()
            for state, cost in reached.items():
                for choice, after in self._next(k, dict(state), known_choices):
                    total = cost.plus(choice.cost)
                    of_nodes[k].append(Transition(state, choice, after, total))
                    least[after] = min(total, least.get(after, total))
            reached = _cheapest(least)
        # the output must be whole, or cut along classes: the loss knows no other cut
        ends = (
            s for s in reached if all(cut.axis == 0 for (subject, _), cut in s if subject == "edge")
        )
        behind = dict.fromkeys(ends, PlanCost())
        if not behind:
            self._refuse()
        for k, before_k in reversed([*enumerate(of_nodes)]):
            of_nodes[k], least = [], {}
            for t in before_k:
                if t.after in behind:
                    rest = behind[t.after]
                    of_nodes[k].append(t._replace(total=t.total.plus(rest)))
                    cost = t.choice.cost.plus(rest)
                    least[t.before] = min(cost, least.get(t.before, cost))
            behind = least
        return of_nodes

    def _next(
        self, k: int, state: dict[Subject, Any], known_choices: KnownChoices
    ) -> Iterator[tuple[NodeChoice, State]]:
        """Yields (choice, next state) for each way to divide node k that agrees with `state`.
        `known_choices` caches the choices by the cuts of the node's inputs."""
        node = self.graph.nodes[k]
        cuts = tuple(state.get(("edge", e)) for e in node.inputs)
        if cuts not in known_choices:
            is_shared = any(("variable", v) in self.last for v in node.variables)
            choices = (
                [NodeChoice(ON_ONE_RANK, PlanCost())] * (not any(cuts))
                if k in self.owned.nodes
                else self._choices(k, cuts, is_shared)
            )
            known_choices[cuts] = [
                (choice._replace(cost=self._cost(k, choice)), self._facts(node, choice, cuts))
                for choice in choices
                if choice.output is None or not any(self.needed[e] for e in node.outputs)
            ]
        for choice, facts in known_choices[cuts]:
            if any(state.get(subject, fact) != fact for subject, fact in facts.items()):
                continue
            after = state | facts
            if choice.output is not None:
                after |= {("edge", e): choice.output for e in node.outputs}
            yield choice, frozenset((of, f) for of, f in after.items() if self.last.get(of, k) > k)

    def _facts(
        self, node: Node, choice: NodeChoice, cuts: tuple[AxisCut | None, ...]
    ) -> dict[Subject, Any]:
        """Returns what a choice for a node fixes for later nodes: how parameters are cut that
        others use too and, if the module is called again, how it is divided."""
        facts: dict[Subject, Any] = {("variable", v): cut for v, cut in choice.variables}
        facts["module", node.name] = (choice.words, choice.bounds, *cuts)
        return {subject: fact for subject, fact in facts.items() if subject in self.last}

    def _choices(
        self, k: int, states: tuple[AxisCut | None, ...], is_shared: bool
    ) -> Iterator[NodeChoice]:
        graph, node, constraints = self.graph, self.graph.nodes[k], self.constraints
        wanted = self.wanted.get(node.name, "") if node.layer else ""
        may_be_copy = is_shared or bool(constraints.names) or wanted == WHOLE.pattern.how
        all_of_them = self.choices.of(k, states, may_be_copy)
        if wanted:
            return (choice for choice in all_of_them if choice.way.pattern.how == wanted)
        return (choice for choice in all_of_them if constraints.allows(graph, node, choice))

    def _cost(self, k: int, choice: NodeChoice) -> PlanCost:
        """Returns the cost of a choice for node k: its price in seconds, or the number of elements
        that are sent. With sequence parallelism or add-ons' axes a whole output costs too."""
        if self.constraints.price is not None:
            return PlanCost(sent=self.constraints.price(k, choice))
        outputs = self.graph.nodes[k].outputs
        is_whole = self.counts_whole and choice.output is None
        whole_numbers = is_whole * sum(self.graph.edges[e].elements for e in outputs)
        return choice.cost.plus(PlanCost(whole=whole_numbers))

    def why(self, k: int, of_node: list[Transition], taken: Transition) -> str:
        """Returns a text that says why the plan makes the choice `taken` for node k: for example
        how many elements the model sends, and how many with the next best choice in `of_node`."""
        node, choice, total = self.graph.nodes[k], taken.choice, taken.total
        if choice.way is ON_ONE_RANK:
            return f"only rank {self.owned.nodes[k]} along tp has it"
        if node.name in self.wanted:
            return "the layout names its way"
        if choice.cost.copied and self.constraints.names:
            return "the layout names no axis of it"
        if choice.cost.copied:
            return "its parameters are used in another way too"
        if choice.way is WHOLE:
            return "its input is whole" if self.ways[k] else "no rule says how to divide it"
        rivals = [(t.total, t.choice.words) for t in of_node if t.choice.words != choice.words]
        cost, words = min(rivals, default=(total, ""))
        if words and cost.copied == total.copied and cost.whole != total.whole:
            return f"{total.whole:,} whole activations for a sample; {cost.whole:,} as {words}"
        if words and cost.copied == total.copied:
            return f"{total.sent:,} elements sent for a sample; {cost.sent:,} as {words}"
        needed = self.needed[node.outputs[0]]
        return f"gathered: {needed}" if choice.gathers and needed else "no other way"

    def _refuse(self) -> None:
        """Raises ValueError, because the model cannot be divided; names the first layer with too
        few channels, if there is one."""
        for k, node in enumerate(self.graph.nodes):
            marker = axis_of_way(self.wanted.get(node.name, ""))
            if marker and marker.of_layout:
                marker.of_layout.refuse(self.graph, k, self.ranks)
            for way in self.ways[k]:
                if way.pattern.divides:
                    size = channels(self.graph, node, way)
                    even_bounds(size, self.ranks, f"layer {node.name} ({node.kind})")
        given_ways = ", ".join(f"{path}={how}" for path, how in self.wanted.items())
        why = f" with {given_ways}: leave some of these out" if given_ways else ""
        raise ValueError(f"no way was found to divide the model among {self.ranks} ranks{why}")


def _cheapest(reached: dict[State, PlanCost]) -> dict[State, PlanCost]:
    """Returns the states from which the search goes on: all or, if these are more than
    `MOST_STATES`, the cheapest ones, and the one that cuts the fewest activations."""
    if len(reached) <= MOST_STATES:
        return reached
    least_cut = min(reached, key=lambda state: sum(subject == "edge" for (subject, _), _ in state))
    followed = [*sorted(reached, key=reached.__getitem__)[: MOST_STATES - 1], least_cut]
    return {state: reached[state] for state in followed}
