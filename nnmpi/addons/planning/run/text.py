"""Text on a run with --plan: the layout, and the time of its steps."""

from nnmpi.io.output import Event
from nnmpi.io.output.messages import EventTexts
from nnmpi.options.amounts import amount, plural


def chosen(e: Event) -> str:
    """Returns lines on the layout that --plan has chosen, from the start event."""
    plan = e["plan"]
    notes = "".join(f"note: {note}\n" for note in plan["notes"])
    return (
        f"{notes}plan: {plan['layout']}, chosen among {plural(plan['looked'], 'layout')}; "
        f"predicted: {1e3 * plan['predicted_seconds']:.4g} ms per step, "
        f"{amount(plan['predicted_bytes'])} per rank"
    )


def outcome(e: Event) -> str:
    """Returns a line for the user at the end of a run, made from its last event: the seconds of a
    step, measured and predicted; "" if the run made no second step."""
    plan = e["plan"]
    if "error" not in plan:
        return ""
    measured, predicted = (1e3 * plan[f"{kind}_seconds"] for kind in ("measured", "predicted"))
    return f"{measured:.4g} ms per step, predicted {predicted:.4g} ({plan['error']:+.1%})"


PLAN = EventTexts(start=chosen, result=outcome)
