"""Makes the texts that the terminal shows about checkpoints, from entries of the run's log (events,
dicts such as {"event": "checkpoint", "step": 10}): a checkpoint was written, the run was resumed
from one, or it was suspended and left one."""

from nnmpi.io.output.messages import TEXTS, Event, EventTexts, start_text
from nnmpi.options.amounts import amount, plural


def resumed(e: Event) -> str:
    """Returns the text to print at the start of a resumed run. `e` is its first event: the fields
    of a start event, and the step, the path and notes of the checkpoint."""
    how = f"resumed at step {e['step']:,} from {e['checkpoint']}"
    return "\n".join([how, *e["notes"], start_text(e)])


def written(e: Event) -> str:
    """Returns the line to print after a checkpoint was written, or could not be written. `e` has
    its `step`, `bytes`, `seconds` and the seconds that training has `waited`; or its `path` and the
    `problem`."""
    if "problem" in e:
        return f"checkpoint of step {e['step']:,} not written to {e['path']}: {e['problem']}"
    return (
        f"checkpoint of step {e['step']:,}: {amount(e['bytes'])} in {e['seconds']:.2f} s; training "
        f"has waited {e['waited']:.2f} s for checkpoints"
    )


def suspended(e: Event) -> str:
    """Returns the text to print when a run has ended early, with a checkpoint from which it can be
    resumed. `e` is its last event: the steps made and wanted, and the path of the checkpoint."""
    lines = [
        f"suspended after {e['steps']:,} of {plural(e['total_steps'], 'step')}: --resume continues "
        f"from {e['checkpoint']}",
        *(texts.result(e) for texts in TEXTS.of_fields(e) if texts.result),
    ]
    return "\n".join(filter(None, lines))


def complete(e: Event) -> str:
    """Returns the text to print if the run that was to be resumed had no steps left. `e` has its
    number of `steps`, the path of its checkpoint, and notes."""
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
