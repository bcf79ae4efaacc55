"""The line search of L-BFGS: chooses the length t of a step along a direction so that it fulfils
the strong Wolfe conditions (slope: the derivative of the loss by t):

    decrease    loss(t) <= loss(0) + DECREASE * t * slope(0)
    curvature   |slope(t)| <= FLATNESS * |slope(0)|

The search first tries longer and longer steps, until a minimum must lie between two of them (the
bracket), and then makes this bracket smaller (Nocedal and Wright, Numerical Optimization, 2006,
section 3.5). The lengths are those of PyTorch's LBFGS, so the losses are PyTorch's too.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

DECREASE, FLATNESS = 1e-4, 0.9


class Trial(NamedTuple):
    """A step that a line search has tried: the loss, the flat gradient, and the slope after it."""

    length: float
    loss: float
    gradient: Any
    slope: float


def strong_wolfe(
    tried: Callable[[float], Trial], start: Trial, length: float, most: int, tolerance: float
) -> Trial:
    """Tries steps of several lengths along a direction; returns the trial of one that fulfils both
    conditions, or the one with the lowest loss.

    tried       evaluates a step of a length
    start       the trial of length 0, whose slope is negative
    length      that of the first step
    most        the largest number of steps that are tried after the first one
    tolerance   a bracket that is shorter is not made smaller
    """
    last, here = start, tried(length)
    for done in range(most):
        if _is_too_high(here, start) or (done > 1 and here.loss >= last.loss):
            break
        if _is_flat(here, start):
            return here
        if here.slope >= 0:
            break
        ends = here.length + 0.01 * (here.length - last.length), here.length * 10
        last, here = here, tried(_lowest(last, here, *ends))
    else:
        return start if start.loss <= here.loss else here
    return _within([last, here], tried, start, most - done, tolerance)


def _within(
    bracket: list[Trial],
    tried: Callable[[float], Trial],
    start: Trial,
    most: int,
    tolerance: float,
) -> Trial:
    """Makes a bracket (two trials with a minimum between them) smaller by at most `most` further
    trials, or until it is shorter than `tolerance`; returns the best trial found."""
    was_near_end = False
    for _ in range(most):
        low = _index_of_lowest(bracket)
        first, last = sorted(trial.length for trial in bracket)
        if last - first < tolerance:
            break
        length, margin = _lowest(bracket[0], bracket[1], first, last), 0.1 * (last - first)
        is_near_end = min(last - length, length - first) < margin
        if is_near_end and (was_near_end or not first < length < last):
            length = last - margin if last - length < length - first else first + margin
            is_near_end = False
        was_near_end = is_near_end
        new = tried(length)
        if _is_too_high(new, start) or new.loss >= bracket[low].loss:
            bracket[1 - low] = new
            continue
        if _is_flat(new, start):
            return new
        if new.slope * (bracket[1 - low].length - bracket[low].length) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = new
    return bracket[_index_of_lowest(bracket)]


def _index_of_lowest(bracket: list[Trial]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def _is_too_high(trial: Trial, start: Trial) -> bool:
    return trial.loss > start.loss + DECREASE * trial.length * start.slope


def _is_flat(trial: Trial, start: Trial) -> bool:
    return abs(trial.slope) <= -FLATNESS * start.slope


def _lowest(a: Trial, b: Trial, least: float, most: float) -> float:
    """Returns the length of the minimum of the cubic through a and b; the middle if it has none."""
    if a.length > b.length:
        a, b = b, a
    mean = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length)
    square = mean * mean - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2
    root = math.sqrt(square)
    difference = b.slope - a.slope + 2 * root
    if not difference:  # a line
        return most
    length = b.length - (b.length - a.length) * ((b.slope + root - mean) / difference)
    return min(max(length, least), most)
