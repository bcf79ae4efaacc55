"""Formats text for runs with checks: phrases in the first lines of the output, the comparison with
one rank after a step, and the final result."""

from collections.abc import Iterator
from typing import Any

from nnmpi.io.output.messages import EventTexts
from nnmpi.options.amounts import plural

Event = dict[str, Any]


def reproducible(e: Event) -> Iterator[str]:
    """Yields the phrase for the first lines of a run about the slices of --reproducible."""
    yield f"reproducible with {plural(e['slices'], 'slice')}"


def slow_rank(e: Event) -> Iterator[str]:
    """Yields the phrase for the first lines of a run about ranks that are slowed down."""
    yield f"slow rank {e['slow_rank']}"


def jitter(e: Event) -> Iterator[str]:
    """Yields the phrase for the first lines of a run about steps that are slowed down at random."""
    yield f"jitter {e['jitter']}"


def verify(e: Event) -> Iterator[str]:
    """Yields the phrase of --verify: steps are compared with one rank."""
    yield "verified against one rank"


def compared(e: Event) -> str:
    """Returns the text of the comparison with one rank (--verify) after a step."""
    replicas = "" if e["replicas_equal"] else "; replicas differ"
    return f"verify step {e['step']:,}: relative differences: {_differences(e)}{replicas}"


def largest(e: Event) -> str:
    """Returns the final line on the largest differences from one rank."""
    differences = _differences(e["largest_differences"])
    return f"verified: largest relative differences: {differences} (updated by the same gradients)"


def _differences(e: Event) -> str:
    """Returns the relative differences between the layout and one rank, as text."""
    names = ("loss", "gradients", "parameters")
    return ", ".join(f"{name} {e[f'{name}_relative']:.3g}" for name in names)


REPRODUCIBLE = EventTexts(ranks=reproducible)
SLOW_RANK = EventTexts(ranks=slow_rank)
JITTER = EventTexts(ranks=jitter)
VERIFY = EventTexts(event=compared, ranks=verify)
LARGEST = EventTexts(result=largest)
