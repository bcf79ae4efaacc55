"""Dropout of attention: places in (heads, T, S) have 32 bits, as kernels take them, if they fit."""

from typing import Any

import numpy as np
import pytest

from nnmpi import nn
from nnmpi.kernels.attention import Tile
from nnmpi.nn.layers import attention
from nnmpi.nn.layers.basic import dropout_key, dropout_mask


@pytest.mark.parametrize(("T", "dtype"), [(6, "uint32"), (1 << 15, "uint32"), (1 << 16, "int64")])
def test_masks_depend_on_the_place_alone(
    T: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, like, taken = nn.SelfAttention(3, dropout=0.5), np.zeros((2, 1), "float32"), list[Any]()

    def noted(key: Any, rows: Any, index: Any, *rest: Any) -> Any:
        taken.append(index.dtype)
        return dropout_mask(key, rows, index, *rest)

    monkeypatch.setattr(attention, "dropout_mask", noted)
    positions = np.arange(T - 5, T)
    keep = attention.keep_of(layer, 0.5, like, T, T)(positions, positions)
    mask = keep(Tile(slice(0, 2), slice(1, 3), slice(1, 4), slice(0, 5)))
    head, i, j = np.ix_([1, 2], positions[1:4], positions)
    index = (head * T + i) * T + j
    key, rows = dropout_key(layer, layer.path, like)
    wanted = dropout_mask(key, rows, index.reshape(-1), 0.5, like)
    np.testing.assert_array_equal(mask, wanted.reshape(2, 2, 1, 3, 5))
    assert taken == [dtype]
