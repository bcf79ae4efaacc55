"""Winograd's convolutions: where they are used."""

import numpy as np
from test_kernels import Options, Problem, chunk_of, problem, solve

from nnmpi.addons.winograd.winograd import Winograd


def test_the_default_is_winograd_by_the_fewest_products_in_float32_and_im2col_in_float64():
    f = Options(padding=1)
    for size, dtype, name in (
        ((8, 8), "float32", "winograd4"),
        ((5, 5), "float32", "winograd2"),
        ((8, 8), "float64", "im2col"),
    ):
        q = problem(size, f)
        typed = Problem(*(a.astype(dtype) for a in q))
        named = f._replace(algorithm=name)
        for a, b in zip(solve(typed, f), solve(typed, named), strict=True):
            assert a.dtype == dtype
            assert np.array_equal(a, b)
    few = Problem(q.x[:, :7], q.w[:, :7], q.b, q.g)
    for odd in (f._replace(stride=2), f._replace(algorithm="winograd2", stride=2)):
        assert not isinstance(chunk_of(q, odd)[0], Winograd)
    assert not isinstance(chunk_of(few, f._replace(algorithm="winograd2"))[0], Winograd)
