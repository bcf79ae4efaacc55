"""The exchanges of a rank's step as text: along which axis, and what they make of what."""

from collections import Counter
from collections.abc import Iterator

from nnmpi.addons.proof.actions import Actions
from nnmpi.addons.proof.shares import Shares
from nnmpi.collectives.algorithms import Collective
from nnmpi.options.amounts import plural
from nnmpi.schedules.op import Kind, Op

KINDS = Kind.SUM, Kind.TIES, Kind.TERMS, Kind.AGREE, Kind.GATHER

CHANGES = {
    Collective.ALL_REDUCE: "terms -> whole",
    Collective.REDUCE_SCATTER: "terms -> parts",
    Collective.ALL_GATHER: "parts -> whole",
}
"""The part of a tensor that a rank has before and after a collective."""


def typed_lines(shares: Shares, actions: Actions) -> Iterator[str]:
    """Yields a line for each kind of operation and axis: what it sums or gathers."""
    for stage in actions.units:
        for way in "FB":
            for axis in shares.place.sizes:
                rows = (r for r in shares.due if (r.stage, r.way, r.axis) == (stage, way, axis))
                if counts := Counter(row.operation for row in rows):
                    each = ", ".join(f"{n} {name}" for name, n in counts.items())
                    yield f"{way} of stage {stage} along {axis}: {each}"
    for kind in KINDS:
        of_kind = Counter(of for op in actions.ops if op.kind is kind for of in _of(actions, op))
        for (axes, change), n in of_kind.items():
            yield f"{n} {kind.value} along {axes}: {change}"
    yield "gradients are divided once, by the labels that count in the batch"


def _of(actions: Actions, op: Op) -> Iterator[tuple[str, str]]:
    for exchange in actions.exchanges(op):
        axes = " and ".join(sorted(actions.axes_of(exchange)))
        yield axes, CHANGES[exchange.operation] + _tensors(actions, op)


def _tensors(actions: Actions, op: Op) -> str:
    """Returns of how many parameters the gradients are that TIES or TERMS sums, as text."""
    if op.kind is Kind.AGREE:
        return " (loss and norm)"
    parts = {Kind.TIES: actions.ties, Kind.TERMS: [actions.terms]}.get(op.kind, ())
    count = sum(len(part.variables) for part in parts)
    return f" ({plural(count, 'gradient')})" if count else ""
