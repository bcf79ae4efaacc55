"""Proves that a rank's list sums each gradient once, over the right ranks, before the update, and
reads only values that are gathered since the last one."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod

from nnmpi.addons.proof.actions import Actions
from nnmpi.addons.proof.layers import Share
from nnmpi.addons.proof.shares import Shares
from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import ADDS, PASSES, Kind, Op

Term = tuple[int, int]
"""The stage and the micro-batch of a backward pass, which adds a term to gradients."""


class GradientWalk:
    """Walks the operations of one rank, with these attributes (with a leading underscore).

    due      by parameter: the terms of its gradient on this rank
    there    those that backward passes have added so far
    summed   those that are in a sum over ranks that has begun
    along    by parameter: the axes along which its gradient is summed
    """

    def __init__(self, a: Arrangement, shares: Shares, actions: Actions) -> None:
        self._a, self._shares, self._actions = a, shares, actions
        self._terms = {v: shares.terms(v) for v in actions.trained if shares.users.get(v)}
        micro = range(len(actions.sizes))
        self._due = {
            v: {(s, m) for s in shares.users[v] if s in actions.units for m in micro}
            for v in self._terms
        }
        self._there = defaultdict[int, set[Term]](set)
        self._summed = defaultdict[int, set[Term]](set)
        self._along = defaultdict[int, set[str]](set)
        self._passes, self._flying = Counter[tuple[str, int, int, int]](), Counter[Op]()
        self._loss, self._scalars, self._noted = list[frozenset[str]](), 0, False
        self._ends = list[Kind]()
        self._is_gathered = a.store.zero > 0 and a.mesh.count(*a.summed_axes) > 1
        self._gathered, self._open = set[int](), set[tuple[int, int]]()
        self._bucket_of = {v: b for b, x in enumerate(actions.buckets) for v in x.variables}
        self._written = dict(self._writes())
        self._check: dict[Kind, Callable[[Op], str]] = {
            **dict.fromkeys(PASSES, self._pass),
            Kind.NOTE: self._note,
            Kind.OPEN: self._opens,
            Kind.GATHER: self._gather,
            Kind.WAIT: self._wait,
            Kind.SUM: self._sum,
            Kind.FINISH: self._finish,
            Kind.TIES: self._more,
            Kind.TERMS: self._more,
            Kind.AGREE: self._agree,
            Kind.APPLY: self._apply,
        }

    def run(self) -> None:
        """Raises ScheduleError for the first operation that is wrong."""
        for op in self._actions.ops:  # the step before: it gathers values that this one reads
            self._values_of(op)
        for k, op in enumerate(self._actions.ops):
            if wrong := self._check.get(op.kind, _nothing)(op):
                raise self._error(f"operation {k}, {op}: {wrong}")
        if self._ends != [Kind.AGREE, Kind.APPLY]:
            raise self._error("the step does not end with an update")
        if missing := next(self._missing_passes(), ""):
            raise self._error(missing)

    def _error(self, text: str) -> ScheduleError:
        return ScheduleError(f"rank {self._actions.rank}, {text}")

    def _path(self, v: int) -> str:
        return self._shares.path(v)

    # ---- values

    def _values_of(self, op: Op) -> None:
        if op.kind in (Kind.GATHER, Kind.WAIT, Kind.APPLY):
            self._check[op.kind](op)
        self._ends.clear()

    def _gather(self, op: Op) -> str:
        length, sent = self._actions.buckets[op.at].length, self._actions.exchanges(op)
        for exchange in sent:
            if exchange.operation is not Collective.ALL_GATHER:
                return f"is made by {exchange.operation.value}; due is all_gather"
            if exchange.elements != length:
                return f"gathers {exchange.elements} of {length} elements"
        return ""

    def _wait(self, op: Op) -> str:
        self._gathered.add(op.at)
        return ""

    def _unread(self, op: Op) -> str:
        """Returns what a pass reads that is not gathered, or ""."""
        if not self._is_gathered:
            return ""
        finals = self._actions.finals.get(op.at, frozenset())
        for b, bucket in enumerate(self._actions.buckets):
            if bucket.variables & finals and b not in self._gathered:
                path = self._path(min(bucket.variables & finals))
                return f"reads {path}, whose values since the last update are not gathered"
        return ""

    # ---- passes

    def _pass(self, op: Op) -> str:
        if self._ends:
            return "a pass comes after the agreement"
        if wrong := self._unread(op):
            return wrong
        way = "F" if op.kind is Kind.F else "B" if op.kind in ADDS else op.kind.value
        self._passes[way, op.stage, op.micro, op.at] += 1
        if op.kind not in ADDS:
            return ""
        if self._a.store.scatters and (wrong := self._is_closed(op)):
            return wrong
        final = {*self._actions.finals.get(op.at, ())}
        if op.at == min(self._actions.units[op.stage]):  # the last pass of the stage
            final |= {v for v in self._due if op.stage in self._shares.users[v]}
        for v in final & self._due.keys():
            if op.stage in self._shares.users[v]:
                self._there[v].add((op.stage, op.micro))
        return ""

    def _writes(self) -> Iterator[tuple[int, frozenset[int]]]:
        """Yields for each unit the parameters to whose gradients backward passes have added when
        its own ends: those that a node uses from the first one on that uses its last ones."""
        place = self._shares.place
        for stage, units in self._actions.units.items():
            uses = defaultdict[int, list[int]](list)
            for k in place.stages[stage].nodes:
                for v in self._due.keys() & {*place.graph.nodes[k].variables}:
                    uses[v].append(k)
            for u in units:
                finals = self._actions.finals.get(u, frozenset()) & uses.keys()
                first = min((uses[v][0] for v in finals), default=place.stages[stage].nodes.stop)
                yield u, frozenset(v for v, nodes in uses.items() if nodes[-1] >= first)

    def _is_closed(self, op: Op) -> str:
        """Returns to whose gradients a backward pass adds while they have no memory, or ""."""
        for v in sorted(self._written[op.at]):
            is_summed = (op.stage, op.micro) in self._summed[v]
            if not is_summed and (self._bucket_of[v], op.micro) not in self._open:
                bucket = self._bucket_of[v]
                return f"adds to the gradient of {self._path(v)}, but bucket {bucket} is not open"
        return ""

    def _opens(self, op: Op) -> str:
        self._open.add((op.at, op.micro))
        return ""

    def _missing_passes(self) -> Iterator[str]:
        for stage, units in self._actions.units.items():
            for m in range(len(self._actions.sizes)):
                for way, word in (("F", "forward"), ("B", "backward")):
                    for u in units:
                        if (n := self._passes[way, stage, m, u]) != 1:
                            yield (
                                f"stage {stage}: unit {u} runs {n} times {word} with micro-batch "
                                f"{m}; due is once"
                            )

    def _note(self, op: Op) -> str:
        self._noted = True
        return ""

    # ---- sums

    def _sum(self, op: Op) -> str:
        length, inside = self._actions.buckets[op.at]
        self._open.discard((op.at, op.micro))
        new = {term for v in inside for term in self._there[v] - self._summed[v]}
        for v in sorted(inside & self._due.keys()):
            if wrong := self._adds_up(v, new):
                return wrong
        if op.at == 0 and self._actions.sums_scalars:
            self._scalars += 1
            if not self._noted or any(self._there[v] != due for v, due in self._due.items()):
                return "sums the loss and what was used, which is not known yet"
        for exchange in self._actions.exchanges(op):
            if not self._a.store.packs and exchange.elements != length:
                return f"sums {exchange.elements} of {length} elements"
            if wrong := self._sums(inside, exchange):
                return wrong
            if op.at == 0 and self._actions.sums_scalars:
                self._loss.append(self._actions.axes_of(exchange))
        self._flying[op._replace(kind=Kind.FINISH)] += 1
        return ""

    def _adds_up(self, v: int, of_bucket: set[Term]) -> str:
        """Notes which terms of a gradient a sum takes; returns what is wrong with them, or "".
        `of_bucket` are those that it takes of any gradient."""
        new, due = self._there[v] - self._summed[v], self._due[v]
        self._summed[v] |= new
        wanted = len(due)
        if self._a.store.scatters:  # each backward pass alone: of another stage, it adds nothing
            wanted = int(not of_bucket or bool(of_bucket & due))
        if len(new) == wanted:
            return ""
        if not new and self._summed[v]:
            return f"the gradient of {self._path(v)} is summed twice"
        return f"{len(new)} of {wanted} terms of the gradient of {self._path(v)} are there"

    def _sums(self, variables: Iterable[int], exchange: Exchange) -> str:
        """Notes along which axes an exchange sums gradients; returns what is wrong, or ""."""
        axes, operation = self._actions.axes_of(exchange), exchange.operation
        is_in_parts = operation is Collective.REDUCE_SCATTER and self._a.store.zero > 0
        if operation is not Collective.ALL_REDUCE and not is_in_parts:
            return f"is made by {operation.value}, which leaves no sum of what this rank updates"
        for v in sorted(self._due.keys() & {*variables}):
            if extra := sorted(axes - self._terms[v].keys()):
                times = prod(self._a.mesh.axes[axis] for axis in extra)
                return (
                    f"sums the gradient of {self._path(v)} along {' and '.join(extra)}, where "
                    f"every rank has all of it: it would count {times} times"
                )
            places = {self._shares.place.stages[s].rank for s in self._shares.users[v]}
            group = self._a.mesh.group(self._actions.rank, *axes)
            with_terms = {
                r for r in group if "pp" not in axes or self._a.mesh.coordinates(r)["pp"] in places
            }
            if {*exchange.group} != with_terms:
                return f"sums the gradient of {self._path(v)} over other ranks than have terms"
            if axes & self._along[v] and not self._a.store.scatters:
                return f"sums the gradient of {self._path(v)} twice along {' and '.join(axes)}"
            self._along[v] |= axes
        return ""

    def _finish(self, op: Op) -> str:
        if not self._flying[op]:
            return "no such sum is under way"
        self._flying[op] -= 1
        return ""

    def _more(self, op: Op) -> str:
        """TIES and TERMS: sums along further axes, of what the sums along dp have left here."""
        parts = self._actions.ties if op.kind is Kind.TIES else [self._actions.terms]
        of = {v for part in parts for v in part.variables}
        if self._flying.total() or any(self._summed[v] != self._due[v] for v in of & {*self._due}):
            return "the sums that it adds up are not complete"
        for part, exchange in zip(parts, self._actions.exchanges(op), strict=False):
            if exchange.elements != part.length:
                n = part.length
                return f"sums {exchange.elements} of the {n} elements that this rank updates"
            if any(self._actions.axes_of(exchange) & self._along[v] for v in part.variables):
                return "sums twice along one axis"
            if wrong := self._sums(part.variables, exchange):
                return wrong
        return ""

    # ---- the update

    def _agree(self, op: Op) -> str:
        for v, due in sorted(self._due.items()):
            if self._summed[v] != due:
                n = len(self._summed[v])
                return f"{n} of {len(due)} terms of the gradient of {self._path(v)} are summed"
            if wrong := self._is_partial(v):
                return wrong
        if self._flying.total():
            return "sums are under way"
        if self._scalars != self._actions.sums_scalars or not self._noted:
            return f"the loss is summed {self._scalars} times in front of bucket 0"
        self._ends.append(op.kind)
        return self._loss_of(op)

    def _is_partial(self, v: int) -> str:
        """Returns along which axis the sum of a gradient is missing, and why it is due, or ""."""
        at_end = {"tp", "pp"} if self._a.store.scatters else {"tp"}
        for axis, why in self._terms[v].items():
            is_of_others = axis in at_end and not self._actions.updated[v]
            if axis not in self._along[v] and not is_of_others:
                return (
                    f"the gradient of {self._path(v)} is still a partial sum along {axis}, since "
                    f"{why}: a sum along {axis} has to come before"
                )
        return ""

    def _loss_of(self, op: Op) -> str:
        """Checks the sums of the loss: once along each axis whose ranks have terms of it, and with
        the norm of the gradients over the ranks that hold one model."""
        sizes = self._a.mesh.axes
        due = {
            axis
            for axis, share in self._shares.loss.items()
            if share is Share.TERM and sizes[axis] > 1
        }
        model = {axis for axis in ("pp", "tp") if sizes[axis] > 1}
        groups = [
            (self._actions.axes_of(e), e.elements)
            for e in self._actions.exchanges(op)
            if e.operation is Collective.ALL_REDUCE
        ]
        if not self._actions.sums_scalars:
            self._loss += [axes for axes, n in groups if axes == due and n > 1][:1]
        if self._loss != [due] * bool(due):
            along = ", ".join("+".join(sorted(axes)) for axes in self._loss) or "no axis"
            return f"the loss is a sum along {'+'.join(sorted(due))}, and is summed along {along}"
        if model and model not in [axes for axes, _ in groups]:
            return f"norm and loss have to be summed along {' and '.join(sorted(model))}"
        return ""

    def _apply(self, op: Op) -> str:
        self._gathered.clear()
        self._ends.append(op.kind)
        return "" if len(self._ends) == 2 else "the ranks have not agreed"


def _nothing(op: Op) -> str:
    return ""
