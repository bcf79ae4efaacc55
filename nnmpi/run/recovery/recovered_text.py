"""The text of the event of a loss."""

from nnmpi.io.output import Event
from nnmpi.options.amounts import plural


def recovered(e: Event) -> str:
    """The text on which ranks were lost, and how the others continue."""
    lost = f"rank{'s' * (len(e['lost']) > 1)} {', '.join(map(str, e['lost']))}"
    steps = f"step {e['step']:,}"
    if e["steps_again"]:
        steps += f", with {plural(e['steps_again'], 'step')} to repeat"
    return f"lost {lost}: continues after {e['seconds']:.1f} s from {steps}; {e['layout']}"
