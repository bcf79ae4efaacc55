"""Texts on runs with --plan: the layout that was chosen, and how long its steps have taken."""

from nnmpi.io.output import Event
from nnmpi.options.amounts import amount, plural


def chosen(e: Event) -> str:
    """Lines of the start on the layout that --plan has chosen, and on its predicted time and
    memory."""
    plan = e["plan"]
    notes = "".join(f"note: {note}\n" for note in plan["notes"])
    return (
        f"{notes}plan: {plan['layout']}, chosen among {plural(plan['looked'], 'layout')}; "
        f"predicted: {1e3 * plan['predicted_seconds']:.4g} ms per step, "
        f"{amount(plan['predicted_bytes'])} per rank"
    )


def outcome(e: Event) -> str:
    """A line of the result on the seconds of a step, measured and predicted; "" if no second step
    was made."""
    plan = e["plan"]
    if "error" not in plan:
        return ""
    measured, predicted = (1e3 * plan[f"{kind}_seconds"] for kind in ("measured", "predicted"))
    return f"{measured:.4g} ms per step, predicted {predicted:.4g} ({plan['error']:+.1%})"
