"""Text for the log on checked runs: phrases at the start, comparisons with one rank, results."""

from collections.abc import Iterator
from typing import Any

from nnmpi.options.amounts import plural

Event = dict[str, Any]


def reproducible(e: Event) -> Iterator[str]:
    """Yields a phrase on the number of slices."""
    yield f"reproducible with {plural(e['slices'], 'slice')}"


def slow_rank(e: Event) -> Iterator[str]:
    """Yields a phrase on ranks that are slowed down."""
    yield f"slow rank {e['slow_rank']}"


def jitter(e: Event) -> Iterator[str]:
    """Yields a phrase on steps that are slowed down at random."""
    yield f"jitter {e['jitter']}"


def verify(e: Event) -> Iterator[str]:
    """Yields a phrase for the log: each step is compared with a model on one rank."""
    yield "verified against one rank"


def compared(e: Event) -> str:
    """Returns the text of the comparison after a step."""
    replicas = "" if e["replicas_equal"] else "; replicas differ"
    return f"verify step {e['step']:,}: relative differences: {_differences(e)}{replicas}"


def largest(e: Event) -> str:
    """Returns a line of the result on the largest differences of the run."""
    differences = _differences(e["largest_differences"])
    return f"verified: largest relative differences: {differences} (updated by the same gradients)"


def _differences(e: Event) -> str:
    """Returns the relative differences between the layout and one rank, as text."""
    names = ("loss", "gradients", "parameters")
    return ", ".join(f"{name} {e[f'{name}_relative']:.3g}" for name in names)
