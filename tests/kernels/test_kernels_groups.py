"""Groups, depthwise and transposed convolution: chunks, memory, and only what is needed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.window import Window, windows
from nnmpi.autograd.ops import conv

N = 5


class Problem(NamedTuple):
    """An op, the channels of its images, the shape of its weight, and its options."""

    op: Callable[..., Result]
    channels: int
    weight: tuple[int, ...]
    options: dict[str, Any]

    def result(self) -> tuple[Result, np.ndarray]:
        """What the op returns, and a gradient of its value."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((N, 7, 6, self.channels)).transpose(0, 3, 1, 2)
        first, second, *kernel = self.weight
        w = rng.standard_normal((*kernel, second, first)).transpose(3, 2, 0, 1)
        out = first if self.op is conv.conv2d else second * self.options["groups"]
        r = self.op(x, w, rng.standard_normal(out), **self.options)
        return r, rng.standard_normal(r.value.shape)


PROBLEMS = {
    "groups": Problem(conv.conv2d, 12, (4, 6, 3, 2), {"groups": 2, "dilation": 2}),
    "few channels a group": Problem(conv.conv2d, 6, (4, 3, 3, 3), {"groups": 2, "relu": True}),
    "depthwise": Problem(conv.conv2d, 6, (6, 1, 3, 3), {"groups": 6, "padding": "same"}),
    "depthwise, pooled": Problem(
        conv.conv2d, 6, (12, 1, 2, 3), {"groups": 6, "relu": True, "pool": True}
    ),
    "transposed": Problem(conv.conv_transpose2d, 6, (6, 4, 3, 3), {"groups": 1, "stride": 2}),
    "transposed groups": Problem(conv.conv_transpose2d, 6, (6, 4, 4, 3), {"groups": 3}),
    "transposed depthwise": Problem(conv.conv_transpose2d, 6, (6, 1, 3, 3), {"groups": 6}),
}
each = pytest.mark.parametrize("q", PROBLEMS.values(), ids=PROBLEMS)


@each
def test_float16_is_kept(q: Problem) -> None:
    g = q.result()[1]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, q.channels, 7, 6)).astype("float16")
    half = q.op(x, rng.standard_normal(q.weight).astype("float16"), None, **q.options)
    shared = half.prepare(g.astype("float16"), (True, True, False))
    found = [half.value, half.vjps[0](shared, None), half.vjps[1](shared, None)]
    assert [a.dtype.name for a in found] == ["float16"] * 3
    assert all(np.isfinite(a).all() for a in found)


def test_same_pads_one_more_behind_where_the_kernel_is_even() -> None:
    for kernel, dilation, sides in ((3, 1, (1, 1)), (4, 1, (1, 2)), (2, 3, (1, 2)), (1, 5, (0, 0))):
        rows, columns = windows((kernel, kernel), 1, "same", dilation)
        assert rows == columns == Window(kernel, 1, *sides, dilation)
        assert rows.outputs(9) == 9
