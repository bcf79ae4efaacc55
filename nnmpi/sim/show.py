"""The results of a simulation: as text for people, as JSON objects for programs."""

from collections.abc import Callable
from typing import Any

from nnmpi.collectives.price import Network
from nnmpi.sim.collective import Outcome, Spread

ROUNDING = 1e-12  # relative to the time: smaller differences are not shown


def duration(seconds: float) -> str:
    """Seconds with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * (1 - 1e-12):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns" if seconds else "0 s"


def amount(nbytes: float) -> str:
    """Bytes in decimal units, as is usual for networks."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.4g} B"


def _three(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


def report(o: Outcome) -> str:
    """The result for one plan, with its formulas."""
    lines = [
        heading(f"{o.operation} by {o.algorithm}", o),
        f"time      {duration(o.seconds)}",
        f"rounds    {o.rounds:,}",
        f"sent      {_spread(o.sent, amount)}",
        f"messages  {_spread(o.messages, _count)}",
    ]
    if o.proved:
        lines.append(f"proved    for {o.proved.start} to {o.proved.stop - 1} ranks")
    if o.textbook:
        lines.append(f"textbook  {o.textbook.formula} = {duration(o.textbook.seconds)}")
    if o.plan:
        lines.append(f"our plan  {o.plan.formula} = {duration(o.plan.seconds)}")
    for d in o.differences:
        if abs(d.seconds) > ROUNDING * o.seconds:
            lines.append(f"          {_signed(d.seconds)}  {d.formula}: {d.why}")
    return "\n".join(lines)


def heading(what: str, o: Outcome) -> str:
    """The operation, the size and the network."""
    ranks = "1 rank" if o.ranks == 1 else f"{o.ranks:,} ranks"
    return f"{what}: {ranks}, {amount(o.nbytes)}\n{network(o.network)}"


def network(n: Network) -> str:
    """The numbers of a network."""
    text = f"alpha {n.link.alpha:g} s, beta {n.link.beta:g} s/B, gamma {n.gamma:g} s/B"
    if n.inner is None:
        return text
    inner = f"alpha {n.inner.alpha:g} s, beta {n.inner.beta:g} s/B"
    return f"{text}; in nodes of {n.per_node:,}: {inner}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _count(x: float) -> str:
    return f"{x:,.4g}" if x < 1000 else f"{x:,.0f}"


def _spread(s: Spread, show: Callable[[float], str]) -> str:
    if s.least == s.most:
        return f"{show(s.most)} by each rank"
    return f"{show(s.most)} at most, {show(s.mean)} on average, {show(s.least)} at least"


def table(outcomes: list[Outcome]) -> str:
    """Several plans of one operation, side by side."""
    first = outcomes[0]
    best = min(o.seconds for o in outcomes)
    rows = [["algorithm", "time", "to fastest", "rounds", "sent at most", "messages", "textbook"]]
    rows += [
        [
            o.algorithm,
            duration(o.seconds),
            _ratio(o.seconds, best),
            f"{o.rounds:,}",
            amount(o.sent.most),
            _count(o.messages.most),
            duration(o.textbook.seconds) if o.textbook else "-",
        ]
        for o in outcomes
    ]
    return f"{heading(first.operation, first)}\n{columns(rows)}"


def columns(rows: list[list[str]]) -> str:
    """Rows of cells as lines: the first cell is to the left of its column, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def _ratio(seconds: float, best: float) -> str:
    return f"{seconds / best:.2f}" if best else "-" if seconds else "1.00"


def record(o: Outcome) -> dict[str, Any]:
    """The outcome as a JSON object."""
    return {
        "operation": o.operation,
        "algorithm": o.algorithm,
        "ranks": o.ranks,
        "bytes": o.nbytes,
        **network_record(o.network),
        "seconds": o.seconds,
        "rounds": o.rounds,
        "sent": o.sent._asdict(),
        "messages": o.messages._asdict(),
        "textbook": o.textbook and {"formula": o.textbook.formula, "seconds": o.textbook.seconds},
        "plan": o.plan and {"formula": o.plan.formula, "seconds": o.plan.seconds},
        "differences": [d._asdict() for d in o.differences],
    }


def network_record(n: Network) -> dict[str, Any]:
    """The numbers of a network as entries of a JSON object."""
    return {
        "alpha": n.link.alpha,
        "beta": n.link.beta,
        "gamma": n.gamma,
        "per_node": n.per_node if n.inner else None,
        "inner_alpha": n.inner.alpha if n.inner else None,
        "inner_beta": n.inner.beta if n.inner else None,
    }
