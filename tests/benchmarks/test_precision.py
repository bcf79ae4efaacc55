"""benchmarks/precision.py: the convolutions that it compares are one convolution."""

import numpy as np
import pytest
from helpers.benchfiles import Import


@pytest.mark.parametrize("algorithm", ["winograd2", "winograd4"])
def test_algorithms_agree_with_im2col(module: Import, algorithm: str) -> None:
    precision = module("precision")
    rng = np.random.default_rng(0)
    shapes = (2, 8, 6, 6), (3, 8, 3, 3), (2, 3, 6, 6)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    exact = precision.nnmpi_conv(arrays, "im2col")
    for a, b in zip(precision.nnmpi_conv(arrays, algorithm), exact, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
