"""Comparisons that say which number is wrong first, and what kind of wrong it may be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from classroom.check import FaultError, Finding
from nnmpi.comm import Comm


def shape_of(value: Any, shape: Sequence[int], label: str) -> str:
    """The reason why a value is not an array of numbers of this shape; "" if it is."""
    wanted = f"not an array of shape {tuple(shape)}" if shape else "not a number"
    if not isinstance(value, (np.ndarray, np.generic, float, int)):
        return f"{label} is {type(value).__name__}, {wanted}"
    if np.asarray(value).dtype.kind not in "fiu":
        return f"{label} is an array of {np.asarray(value).dtype}, not of numbers"
    if np.shape(value) != tuple(shape):
        return f"{label} has shape {np.shape(value)}, {wanted}"
    return ""


def needed(value: Any, shape: Sequence[int], label: str) -> Any:
    """The value, an array of numbers of this shape; otherwise the check ends with a FaultError."""
    if wrong := shape_of(value, shape, label):
        raise FaultError(wrong)
    return value


def differs(
    rank: int, got: Any, expected: Any, label: str, step: int = -1, rtol: float = 1e-10
) -> Finding | None:
    """A finding with the first wrong element, if the largest difference is more than `rtol` of the
    largest number expected."""
    wanted = np.asarray(expected)
    if wrong := shape_of(got, wanted.shape, label):
        return Finding(rank, wrong, step)
    values = np.asarray(got)
    limit = rtol * max(float(np.max(np.abs(wanted), initial=0)), 1e-300)
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(values - wanted) <= limit)  # so that NaN is bad
    if not bad.any():
        return None
    at = np.unravel_index(int(np.argmax(bad)), wanted.shape)
    place = f"[{', '.join(str(int(i)) for i in at)}]" if at else ""
    text = "{}{} is {}, expected {}".format(label, place, *apart(values[at], wanted[at]))
    of_all = f"; {int(bad.sum())} of {wanted.size} elements are wrong" if wanted.size > 1 else ""
    return Finding(rank, text + _hint(values, wanted, limit) + of_all, step)


def number(rank: int, value: Any, label: str) -> Finding | None:
    """A finding if a value is not a finite number."""
    if wrong := shape_of(value, (), label):
        return Finding(rank, wrong)
    return None if np.isfinite(value) else Finding(rank, f"{label} is {value}, not a finite number")


def apart(got: float, expected: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ, at least six."""
    pairs = ((f"{got:,.{n}g}", f"{expected:,.{n}g}") for n in range(6, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{got:,.6g}",) * 2)


def _hint(got: Any, expected: Any, limit: float) -> str:
    """The simple mistake after which an array looks like this; "" if none is known."""
    if not got.any():
        return " (all of it is zero)" if got.size > 1 else ""
    if not np.isfinite(got).all():
        return " (it has numbers that are not finite)" if got.size > 1 else ""
    factor = float(np.vdot(expected, got) / max(np.vdot(expected, expected), 1e-300))
    if factor and np.all(np.abs(got - factor * expected) <= max(abs(factor), 1) * limit):
        return f" ({'all of it is ' * (got.size > 1)}{times(factor)})"
    if got.ndim == 2 and got.shape[0] == got.shape[1] and np.allclose(got, expected.T):
        return " (it is transposed)"
    return ""


def times(factor: float) -> str:
    """A factor in words: "2 times too large"."""
    if factor < 0:
        return f"{factor:.4g} times that"
    ratio = max(factor, 1 / factor)
    digits = next((n for n in range(4, 17) if f"{ratio:.{n}g}" != "1"), 17)
    return f"{ratio:.{digits}g} times too {'large' if factor > 1 else 'small'}"


def explained(finding: Finding | None, got: Any, mistakes: Mapping[str, Any]) -> Finding | None:
    """The finding, with the name of the first mistake that gives the array `got`."""
    for name, wrong in mistakes.items():
        if not finding or shape_of(got, np.shape(wrong), ""):
            return finding
        if np.allclose(got, wrong, 1e-9, 1e-12):
            return finding._replace(text=f"{finding.text}: {name}")
    return finding


def counted(rank: int, got: float, expected: float, label: str) -> Finding | None:
    """A finding if a count (of messages, bytes, rounds) is not exactly as expected."""
    if got == expected:
        return None
    factor = f" ({times(got / expected)})" if got and expected else ""
    return Finding(rank, "{}: {}, expected {}{}".format(label, *apart(got, expected), factor))


def first(*findings: Finding | None) -> Finding | None:
    """The first of the findings, by step and rank; None if there is none."""
    return min((f for f in findings if f is not None), key=lambda f: f.order, default=None)


def any_rank(comm: Comm, finding: Finding | None) -> bool:
    """True on all ranks if one of them has a finding, so that they end together; collective."""
    count = np.array([float(finding is not None)])
    comm.all_reduce(count, "ring")
    return bool(count[0] > 0)
