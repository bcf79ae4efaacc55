"""What benchmarks/sharding.py expects: memory and messages from formulas.

d, t   ranks along dp and tp      P   parameters, of 4 bytes      m   micro-batches
"""

from collections.abc import Sequence
from itertools import pairwise

NUMBER = 4  # bytes of a float32


def widths(text: str) -> list[int]:
    """Of a model such as mlp:64-3x1024-10."""
    found: list[int] = []
    for word in text.removeprefix("mlp:").split("-"):
        times, _, width = word.rpartition("x")
        found += [int(width)] * int(times or 1)
    return found


def parameters_of_mlp(widths: Sequence[int]) -> int:
    """Weights and biases."""
    return sum(k * o + o for k, o in pairwise(widths))


def held_per_parameter(zero: int, d: int, shared: bool = False) -> float:
    """Bytes a rank holds for a parameter, its gradient and Adam's state, in float32.

    4 + 4 + 8; each ZeRO stage divides one of them by d. With shared memory on one node there is one
    copy of the parameters and one of the sums a node, and each rank has its own gradients:
    (4 + 4 + 8) / d + 4.
    """
    if shared:
        return (16 + 4 * d) / d
    return (16, 8 + 8 / d, 4 + 12 / d, 16 / d)[zero]


def units(zero: int, m: int) -> int:
    """Units of traffic in a step; a unit is a reduce-scatter or an all-gather of P numbers.

    Stages 2 and 3 reduce-scatter the gradients of each micro-batch; stage 3 also gathers the
    parameters before its forward and before its backward pass.
    """
    return (2, 2, m + 1, 3 * m)[zero]


def unit_bytes(parameters: float, d: int) -> float:
    """What a rank sends in a unit."""
    return (d - 1) / d * parameters * NUMBER


def tensor_numbers(widths: Sequence[int]) -> int:
    """Numbers that the ranks of tp sum for each sample, forward and back, in an MLP.

    Layers are column, row, column, ...: the output of a row layer is summed on the way forward, the
    input of a column layer on the way back, but for the first layer's, which has no gradient.
    """
    inputs, outputs = widths[2:-1:2], widths[2::2]
    return sum(inputs) + sum(outputs)


def tensor_bytes(widths: Sequence[int], batch: int, t: int) -> float:
    """What a rank sends in a step of tensor parallelism, over a ring."""
    return 2 * (t - 1) / t * batch * tensor_numbers(widths) * NUMBER


def pipeline_bytes(width: int, batch: int) -> float:
    """What crosses one boundary between stages in a step: activations there, gradients back."""
    return 2 * batch * width * NUMBER
