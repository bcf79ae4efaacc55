"""The types in which the ops of this folder compute within autocast."""

from collections.abc import Mapping, Sequence
from typing import Any


def in_16_bits(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns True: the rule of products."""
    return True


def in_float32(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns False: the op computes in float32, whatever the types of its arguments."""
    return False
