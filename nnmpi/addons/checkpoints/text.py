"""Makes the texts that the terminal shows about checkpoints, from events of the run's log."""

from nnmpi.io.output.messages import TEXTS, Event, EventTexts, start_text
from nnmpi.options.amounts import amount, plural


def resumed(e: Event) -> str:
    """Returns the text at the start of a resumed run, from its first event."""
    how = f"resumed at step {e['step']:,} from {e['checkpoint']}"
    return "\n".join([how, *e["notes"], start_text(e)])


def written(e: Event) -> str:
    """Returns the line after a checkpoint was written, or could not be, because of a `problem`."""
    if "problem" in e:
        return f"checkpoint of step {e['step']:,} not written to {e['path']}: {e['problem']}"
    return (
        f"checkpoint of step {e['step']:,}: {amount(e['bytes'])} in {e['seconds']:.2f} s; training "
        f"has waited {e['waited']:.2f} s for checkpoints"
    )


def suspended(e: Event) -> str:
    """Returns the text after a run that has ended early, with a checkpoint to resume from."""
    lines = [
        f"suspended after {e['steps']:,} of {plural(e['total_steps'], 'step')}: --resume continues "
        f"from {e['checkpoint']}",
        *(texts.result(e) for texts in TEXTS.of_fields(e) if texts.result),
    ]
    return "\n".join(filter(None, lines))


def complete(e: Event) -> str:
    """Returns the text if the run that was to be resumed had no steps left."""
    run = f"complete: the run of {e['checkpoint']} has ended after {plural(e['steps'], 'step')}"
    return "\n".join([*e["notes"], run])


def waited(e: Event) -> str:
    """Returns a line on the number of checkpoints of a run, and on the time for which training
    waited for them; "" if there are none. The last one of a completed run is not written yet."""
    of_run, which = e["checkpoints"], "" if e["event"] == "suspended" else " before the last one"
    if not of_run["written"]:
        return ""
    return (
        f"{plural(of_run['written'], 'checkpoint')} written to {of_run['directory']}{which}; "
        f"training waited {of_run['waited']:.2f} s in all"
    )


WRITTEN = EventTexts(event=written)
COMPLETE = EventTexts(event=complete)
RESUMED = EventTexts(event=resumed)
SUSPENDED = EventTexts(event=suspended)
CHECKPOINTS = EventTexts(result=waited)
