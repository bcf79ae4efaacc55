"""What callers name: algorithms, and the tags of messages."""

import operator
from collections.abc import Mapping

from nnmpi.collectives.step import Algorithm
from nnmpi.comm.transport.base import TAGS


def named(family: Mapping[str, Algorithm], name: str, operation: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in family:
        raise unknown(name, operation, tuple(family))
    return family[name]


def unknown(name: str, operation: str, names: tuple[str, ...]) -> ValueError:
    """The error for a name that is none of the names of an operation's algorithms."""
    return ValueError(f"{operation} has no algorithm {name!r}: choose one of {', '.join(names)}")


def checked_tag(tag: int) -> int:
    """The tag as an int; every MPI has so many."""
    tag = operator.index(tag)
    if not 0 <= tag < TAGS:
        raise ValueError(f"tag {tag} is out of range: use 0 to {TAGS - 1}")
    return tag
