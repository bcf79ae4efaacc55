"""Arguments of the kernels of Winograd's convolutions."""

from typing import Any

import numpy as np
from helpers.kernels.numbers import Rng, one_of
from helpers.kernels.products import CLOSE, Draw, gradient_of, outputs_of, whole

from nnmpi.addons.winograd import winograd


def zeros(q: winograd.Tiling, n: int, channels: int, dtype: Any) -> np.ndarray:
    """Tiles of n images, with padding between planes."""
    found = winograd.tiles(q, n, channels, dtype)
    found.base[...] = 0
    return found


def tiles(rng: Rng, dtype: Any, drawn: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Images (n, H, W, C) and their tiles, of which one is drawn and the other is not, and p."""
    side, pad = one_of(rng, 2, 4), int(rng.integers(3))
    n, H, W, C = (int(rng.integers(1, 4)), *map(int, rng.integers(3, 12, 2)), one_of(rng, 1, 8, 33))
    V = zeros(winograd.grid(side, H, W, pad, False), n, C, dtype)
    images = np.zeros((n, H, W, C), dtype)
    (V if drawn else images)[...] = rng.standard_normal((V if drawn else images).shape)
    return images, V, pad


def winograd_tiles(rng: Rng, dtype: Any) -> list[Any]:
    return [*tiles(rng, dtype, False)]


def winograd_images(rng: Rng, dtype: Any) -> list[Any]:
    images, V, pad = tiles(rng, dtype, True)
    return [V, images, pad]


def winograd_weights(rng: Rng, dtype: Any) -> list[Any]:
    """w (3, 3, R, C), also with rows and columns exchanged, and U."""
    R, C, tile = int(rng.integers(1, 20)), one_of(rng, 1, 16, 33), one_of(rng, 4, 6)
    turned = one_of(rng, False, True)
    w = rng.standard_normal((3, 3, *((C, R) if turned else (R, C)))).astype(dtype)
    return [w.swapaxes(2, 3) if turned else w, np.zeros((tile**2, R, C), dtype)]


def winograd_unweights(rng: Rng, dtype: Any) -> list[Any]:
    _, U = winograd_weights(rng, dtype)
    return [rng.standard_normal(U.shape).astype(dtype), np.zeros((*U.shape[1:], 9), dtype)]


def tiled(rng: Rng, dtype: Any) -> tuple[np.ndarray, tuple[int, ...], bool]:
    """M of whole numbers, the shape of the outputs, and whether they are pooled."""
    side, pool, O = one_of(rng, 2, 4), one_of(rng, False, True), one_of(rng, 1, 16, 33)
    n, h, w = (int(x) for x in rng.integers(1, 6, 3))
    many = side // 2 if pool else side
    q = winograd.Tiling(side, 0, 0, 0, -(-h // many), -(-w // many))
    M = zeros(q, n, O, dtype)
    M[...] = whole(rng, M.shape, dtype)
    return M, (n, h, w, O), pool


def winograd_outputs(rng: Rng, dtype: Any) -> list[Any]:
    M, S, pool = tiled(rng, dtype)
    return [M, *outputs_of(rng, S, pool, dtype)]


def winograd_gradients(rng: Rng, dtype: Any) -> list[Any]:
    M, S, pool = tiled(rng, dtype)
    return [*gradient_of(rng, S, pool, dtype), M]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "winograd_weights": (winograd_weights, CLOSE, False),
    "winograd_unweights": (winograd_unweights, CLOSE, False),
    "winograd_tiles": (winograd_tiles, CLOSE, False),
    "winograd_images": (winograd_images, CLOSE, False),
    "winograd_outputs": (winograd_outputs, CLOSE, False),
    "winograd_gradients": (winograd_gradients, CLOSE, False),
}
