"""Groups, depthwise and transposed convolution: chunks, memory, and only what is needed."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi import backend
from nnmpi.autograd.ops import conv
from nnmpi.kernels import Result
from nnmpi.kernels.conv import ConvShape, method_of
from nnmpi.kernels.depthwise import Depthwise
from nnmpi.kernels.im2col import Im2col
from nnmpi.kernels.window import Window, windows

N = 5


class Problem(NamedTuple):
    """An op, the channels of its images, the shape of its weight, and its options."""

    op: Callable[..., Result]
    channels: int
    weight: tuple[int, ...]
    options: dict[str, Any]

    def solved(self) -> list[np.ndarray]:
        """The value and all gradients, as the kernel hands them out."""
        r, g = self.result()
        shared = r.prepare(g, (True, True, True))
        return [r.value, *(vjp(shared, None) for vjp in r.vjps)]

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
def test_results_do_not_depend_on_chunks(q: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = q.solved()
    for budget in (1, 1 << 13):
        monkeypatch.setattr(backend, "CPU", backend.CPU._replace(chunk_bytes=budget))
        for a, b in zip(q.solved(), whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@each
def test_memory_is_channels_last(q: Problem) -> None:
    y, dx, dw, _ = q.solved()
    for images in (y, dx):
        assert images.transpose(0, 2, 3, 1).flags.c_contiguous
    assert dw.transpose(2, 3, 1, 0).flags.c_contiguous


@each
def test_only_what_is_needed_is_computed(q: Problem) -> None:
    r, g = q.result()
    whole = r.prepare(g, (True, True, True))
    for needs in product((False, True), repeat=3):
        shared = r.prepare(g, needs)
        assert [part is not None for part in shared] == list(needs)
        for vjp, need in zip(r.vjps, needs, strict=True):
            assert not need or np.array_equal(vjp(shared, None), vjp(whole, None))


@each
def test_the_gradient_of_w_is_written_where_it_belongs(q: Problem) -> None:
    r, g = q.result()
    fresh = r.vjps[1](r.prepare(g, (False, True, False)), None)
    room = np.full_like(fresh, np.nan)
    assert r.vjps[1](r.prepare(g, (False, True, False)), room) is room
    assert np.array_equal(room, fresh)


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


def test_each_kind_of_groups_has_its_method() -> None:
    both = windows((3, 3), 1, 1)
    kinds = {(1, 12): Im2col, (2, 12): Im2col, (12, 12): Depthwise, (1, 1): Im2col}
    for (groups, channels), kind in kinds.items():
        x, w = np.zeros((2, 5, 5, channels)), np.zeros((3, 3, channels // groups, 12))
        assert type(method_of(x, w, ConvShape(both, groups))[0]) is kind


def test_same_pads_one_more_behind_where_the_kernel_is_even() -> None:
    for kernel, dilation, sides in ((3, 1, (1, 1)), (4, 1, (1, 2)), (2, 3, (1, 2)), (1, 5, (0, 0))):
        rows, columns = windows((kernel, kernel), 1, "same", dilation)
        assert rows == columns == Window(kernel, 1, *sides, dilation)
        assert rows.outputs(9) == 9
