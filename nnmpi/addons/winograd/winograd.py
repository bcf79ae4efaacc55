"""3x3 convolution with stride 1 by Winograd's F(2x2, 3x3) and F(4x4, 3x3), channels last.

    n images in a chunk      t = m + 2   side of an input tile     C, O channels in and out
    m x m outputs a tile     th, tw      tiles down and across     T = n * th * tw tiles

    x ---- phases ---> P (m, m, n, th+1, tw+1, C)     pixel (m*i + a, m*j + b) of padded x
    P ---- tiles ----> D (t, t, T, C)                 pixel (a, b) of every tile
    V = kron(B', B') @ D  (t*t, n, th, tw, C)         t*t products instead of 9*m*m
    M[k] = V[k] (T, C) @ U[k] (C, O)                  U = kron(G, G) @ w
    Y = kron(A', A') @ M  (m, m, T, O)                output pixel (a, b) of every tile

and backwards through the transposes. `matrices.py` has the matrices, with B for B'
and A for A'. A tile is one or four pooling windows. In NumPy, copies move whole rows of tiles
(phases first, then tiles), all transforms are GEMMs, and planes are padded by 16 elements: rows
that are a power of two apart share a cache set. V, U and the gradient of M have the dtype of
images, everything else that of sums.
"""

from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.winograd.matrices import transform
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import epilogue, progress_hook
from nnmpi.arrays.kernels.conv import ConvShape, images_per_chunk
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.linear import products_loop
from nnmpi.arrays.kernels.window import Window
from nnmpi.arrays.native.table import InOut, Out, kernel

SIDES = {"auto": (2, 4), "winograd2": (2,), "winograd4": (4,)}
"""By value of `--convolution`, the possible sides m of output tiles."""

MIN_CHANNELS = 8  # with fewer, the transforms cost more than the GEMMs save

_PLANE_PAD = 16  # elements; without them one transform took 9 times as long


class Tiling(NamedTuple):
    """How th x tw tiles of m x m outputs cover an image of H x W pixels, padded by p."""

    m: int
    H: int
    W: int
    p: int
    th: int
    tw: int

    @property
    def products(self) -> int:
        """The multiplications for one image and one pair of an input and an output channel."""
        return (self.m + 2) ** 2 * self.th * self.tw


def grid(m: int, H: int, W: int, p: int, pool: bool) -> Tiling:
    """Returns the tiles of m x m outputs that cover an image of H x W pixels with padding p; with
    pooling, a last odd row or column of outputs is left out."""
    h, w = H + 2 * p - 2, W + 2 * p - 2
    if pool:
        h, w = h // 2 * 2, w // 2 * 2
    return Tiling(m, H, W, p, -(-h // m), -(-w // m))


@lru_cache(maxsize=64)
def phases(m: int, p: int, size: int, tiles: int) -> list[tuple[slice, slice]]:
    """Returns how pixels along one axis of an image are sorted by their position modulo m: item a
    has two slices, of the pixels of x at m*i + a in the padded image, and of their places i in
    P[a]. The axis has `size` pixels without the padding p."""
    slices = []
    for a in range(m):
        first = max(0, -(-(p - a) // m))
        r = m * first + a - p
        count = max(0, min(tiles + 1 - first, -(-(size - r) // m)))
        pixels = slice(r, r + m * count, m) if count else slice(0, 0)
        slices.append((pixels, slice(first, first + count)))
    return slices


def split_phases(x: np.ndarray, P: np.ndarray, q: Tiling) -> None:
    """Sorts the pixels of images x (n, H, W, C) into P (m, m, n, th+1, tw+1, C), which is already 0
    where there is padding: P[a, b] gets those at rows m*i + a and columns m*j + b of the padded
    image."""
    columns = phases(q.m, q.p, q.W, q.tw)
    for a, (down, i) in enumerate(phases(q.m, q.p, q.H, q.th)):
        for b, (right, j) in enumerate(columns):
            P[a, b][:, i, j] = x[:, down, right]


def merge_phases(P: np.ndarray, x: np.ndarray, q: Tiling) -> None:
    """Copies P back into images x: the inverse of `split_phases`. Pixels outside of all tiles
    become 0."""
    x[:, q.m * (q.th + 1) - q.p :] = 0
    x[:, :, q.m * (q.tw + 1) - q.p :] = 0
    columns = phases(q.m, q.p, q.W, q.tw)
    for a, (down, i) in enumerate(phases(q.m, q.p, q.H, q.th)):
        for b, (right, j) in enumerate(columns):
            x[:, down, right] = P[a, b][:, i, j]


def gather_tiles(P: np.ndarray, D: np.ndarray, q: Tiling) -> None:
    """Copies the pixels of all input tiles from P of `split_phases` to D (t, t, n, th, tw, C), with
    pixel (a, b) of every tile at D[a, b]. Tiles overlap by two pixels."""
    m, th, tw = q.m, q.th, q.tw
    for a in range(m + 2):
        for b in range(m + 2):
            i, j = a // m, b // m
            D[a, b] = P[a % m, b % m][:, i : i + th, j : j + tw]


def scatter_tiles(D: np.ndarray, P: np.ndarray, q: Tiling) -> None:
    """Writes to P the sum of all tiles in D: the transpose of `gather_tiles`, which adds shared
    pixels."""
    m, th, tw = q.m, q.th, q.tw
    P[:, :, :, th:] = 0
    P[:, :, :, :, tw:] = 0
    P[:, :, :, :th, :tw] = D[:m, :m]
    for a in range(m + 2):
        for b in range(m + 2):
            i, j = a // m, b // m
            if i or j:
                P[a % m, b % m][:, i : i + th, j : j + tw] += D[a, b]


@kernel
def winograd_tiles(x: np.ndarray, V: Out, p: int) -> None:
    """Writes Winograd's transform V (t*t, n, th, tw, C) = kron(B', B') D of images x (n, H, W, C),
    padded by p, for their overlapping t x t tiles D."""
    q, n = _tiling(x, V, p), len(x)
    P = np.zeros((q.m, q.m, n, q.th + 1, q.tw + 1, V.shape[4]), x.dtype)
    split_phases(x, P, q)
    D = tiles(q, n, V.shape[4], x.dtype)
    gather_tiles(P, _by_tile(D), q)
    np.matmul(transform(q.m, x.dtype.name).B, matrix(D), out=matrix(V))


@kernel
def winograd_images(V: np.ndarray, x: Out, p: int) -> None:
    """Writes the gradient x (n, H, W, C) of images, padded by p, from that of V: the transpose of
    `winograd_tiles`, which adds pixels where tiles overlap."""
    q, n = _tiling(x, V, p), len(x)
    D = tiles(q, n, V.shape[4], V.dtype)
    np.matmul(transform(q.m, V.dtype.name).B.T, matrix(V), out=matrix(D))
    P = np.empty((q.m, q.m, n, q.th + 1, q.tw + 1, V.shape[4]), V.dtype)
    scatter_tiles(_by_tile(D), P, q)
    merge_phases(P, x, q)


@kernel
def winograd_outputs(
    M: np.ndarray, y: Out, largest: Out | None, bias: np.ndarray | None, zero: np.ndarray | None
) -> None:
    """Writes a convolution's outputs y (n, h, w, O) from its products M (t*t, n, th, tw, O): the
    output pixels of a tile are kron(A', A') M. Then come pooling, with the position of each maximum
    written to `largest`, bias, and ReLU if `zero` is given."""
    m = isqrt(len(M)) - 2
    Y = np.empty((m * m, *M.shape[1:]), M.dtype)
    np.matmul(transform(m, M.dtype.name).A, matrix(M), out=matrix(Y))
    z, covers = _by_window(Y, largest is not None)
    rows = epilogue.RowConstants(bias, zero)
    epilogue.outputs(z, y, largest, rows, covers)


@kernel
def winograd_gradients(
    g: np.ndarray, y: np.ndarray | None, largest: np.ndarray | None, db: InOut | None, M: Out
) -> None:
    """Writes M (t*t, n, th, tw, O), the gradient of the products, from g, that of the outputs.

    y are the outputs, or None without ReLU: where y is 0, ReLU passes no gradient on. `largest` has
    the position (0 to 3) of the maximum in each 2x2 pooling window, or is None without pooling. The
    sum over pixels is added to db, the gradient of the bias, unless that is None.
    """
    m = isqrt(len(M)) - 2
    Y = np.empty((m * m, *M.shape[1:]), M.dtype)
    z, covers = _by_window(Y, largest is not None)
    epilogue.spread(epilogue.masked(g, y, db), largest, z, covers)
    np.matmul(transform(m, M.dtype.name).A.T, matrix(Y), out=matrix(M))


@kernel
def winograd_weights(w: np.ndarray, U: Out) -> None:
    """Writes U (t*t, R, C) = kron(G, G) w, the transform of weights w (3, 3, R, C) of any
    strides."""
    G = transform(isqrt(len(U)) - 2, w.dtype.name).G
    U[...] = (G @ w.reshape(9, -1)).reshape(U.shape)


@kernel
def winograd_unweights(U: np.ndarray, w: Out) -> None:
    """Writes w (R, C, 9) = kron(G, G).T U, the gradient of weights from that of U."""
    G = transform(isqrt(len(U)) - 2, U.dtype.name).G
    w[...] = np.moveaxis((G.T @ U.reshape(len(U), -1)).reshape(9, *U.shape[1:]), 0, -1)


def _tiling(x: np.ndarray, V: np.ndarray, p: int) -> Tiling:
    """Returns how the images x (n, H, W, C), padded by p, are covered by the tiles in V."""
    (_, H, W, _), (T, _, th, tw, _) = x.shape, V.shape
    return Tiling(isqrt(T) - 2, H, W, p, th, tw)


def _by_window(Y: np.ndarray, pool: bool) -> tuple[np.ndarray, tuple[int, int]]:
    """Returns a view of output pixels Y (m*m, n, th, tw, O) as images (n, th, m, tw, m, O), or with
    pooling as (2, 2, n, th, m/2, tw, m/2, O), by the position in a window; and the height and width
    of the tiles."""
    Y = _by_tile(Y)
    m, _, _, th, tw, _ = Y.shape
    if not pool:
        return Y.transpose(2, 3, 0, 4, 1, 5), (th * m, tw * m)
    Y = Y.reshape(m // 2, 2, m // 2, 2, *Y.shape[2:])
    return Y.transpose(1, 3, 4, 5, 0, 6, 2, 7), (th * m // 2, tw * m // 2)


def tiles(q: Tiling, n: int, channels: int, dtype: Any, xp: Any = np) -> np.ndarray:
    """Allocates an array (t*t, n, th, tw, channels) for tiles of n images; unused elements between
    its planes keep them from sharing cache sets."""
    size = n * q.th * q.tw * channels
    matrix: np.ndarray = xp.empty(((q.m + 2) ** 2, size + _PLANE_PAD), dtype)
    return matrix[:, :size].reshape(-1, n, q.th, q.tw, channels)


def matrix(X: np.ndarray) -> np.ndarray:
    """Returns transformed tiles (k, n, th, tw, C) as a matrix (k, n * th * tw * C): a view."""
    return X.reshape(len(X), -1)


def _by_tile(X: np.ndarray) -> np.ndarray:
    """Returns transformed tiles (k*k, n, th, tw, C) as (k, k, n, th, tw, C): a view."""
    return X.reshape(isqrt(len(X)), -1, *X.shape[1:])


class Winograd:
    """The method of Winograd, a `ConvMethod`, for 3x3 kernels with stride 1."""

    adds_db = True

    def __init__(self, x: np.ndarray, w: np.ndarray, q: Tiling, chunk: int) -> None:
        """Takes images x (N, H, W, C) with any strides and contiguous weights w (3, 3, C, O);
        `chunk` images are computed at a time."""
        self.x, self.w, self.q = x, w, q
        self.C, self.O = w.shape[2:]
        self.sums = types_of(w.dtype).sums
        self.U = self.transformed(w)
        self.kept: dict[int, np.ndarray] = {}  # V of each chunk

    def transformed(self, w: np.ndarray) -> np.ndarray:
        """Returns U (t*t, R, C), the transform of weights w (3, 3, R, C), which is not kept for the
        backward pass: it is up to four times as large."""
        U: np.ndarray = xp_of(w).empty(((self.q.m + 2) ** 2, *w.shape[2:]), w.dtype)
        winograd_weights(w, U)
        return U

    def begin_backward(self, needs_dx: bool) -> None:
        """Computes U for the gradient of x, if it is needed, from the present w: transposed, since
        BLAS transposes slowly in each product."""
        if needs_dx:
            self.U = self.transformed(self.w.swapaxes(2, 3))

    def release(self) -> None:
        """Frees U and the images after the last chunk of a pass."""
        images = xp_of(self.x).empty((0, *self.x.shape[1:]), self.x.dtype)
        self.U, self.x = self.w[:0], images

    def _tiles(self, n: int, channels: int, dtype: Any) -> np.ndarray:
        """Allocates transformed tiles (t*t, n, th, tw, channels) for n of the images."""
        return tiles(self.q, n, channels, dtype, xp_of(self.x))

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """Writes the outputs y (n, h, w, O) of images x[s], after pooling, bias and ReLU, and keeps
        their transformed tiles. `largest` receives the position of the maximum in each pooling
        window, if any."""
        x = self.x[s]
        V = self.kept[s.start] = self._tiles(len(x), self.C, x.dtype)
        winograd_tiles(x, V, self.q.p)
        M = self._tiles(len(x), self.O, self.sums)
        products_loop(_rows(V), self.U, _rows(M), False)
        winograd_outputs(M, y, largest, *rows)

    def new_dw(self) -> np.ndarray:
        """Returns zeros (t*t, O, C) for the gradient of U, transposed: a faster product."""
        shape = (self.q.m + 2) ** 2, self.O, self.C
        zeros: np.ndarray = xp_of(self.w).zeros(shape, self.sums)
        return zeros

    def finish_dw(self, dUt: np.ndarray) -> np.ndarray:
        """Returns the gradient of w (3, 3, C, O) from that of U, dUt, as a view of (O, C, 9)."""
        dw: np.ndarray = xp_of(self.w).empty((self.O, self.C, 9), self.sums)
        winograd_unweights(dUt, dw)
        return dw.reshape(self.O, self.C, 3, 3).transpose(2, 3, 1, 0)

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Computes gradients for images x[s], from the gradient g of their outputs y (None without
        ReLU): writes shared.dx[s], and adds to shared.dw and shared.db; None for one that is not
        needed."""
        progress = progress_hook.get()
        tiles = self._tiles(len(g), self.O, g.dtype)
        winograd_gradients(g, y, largest, shared.db, tiles)
        dM = _rows(tiles)
        if shared.dw is not None:
            progress()
            products_loop(dM.transpose(0, 2, 1), _rows(self.kept[s.start]), shared.dw, True)
        if shared.dx is not None:
            dV = self._tiles(len(g), self.C, self.sums)
            progress()
            products_loop(dM, self.U, _rows(dV), False)
            winograd_images(dV, shared.dx[s], self.q.p)


def _rows(X: np.ndarray) -> np.ndarray:
    """Returns a view of transformed tiles (k, n, th, tw, C) as k matrices (k, T, C)."""
    return X.reshape(len(X), -1, X.shape[-1])


def method_of(x: Array, w: Array, f: ConvShape) -> tuple[Winograd, int] | None:
    """Returns a Winograd convolution method for images x (N, H, W, C) on the host and w (3, 3, C,
    O), and the number of images to compute at a time; None if Winograd does not apply or is slower.

    Of F(2x2) and F(4x4) it takes the one with fewer multiplications for images of this size: 36 for
    16 output pixels, or 16 for 4, of each pair of channels. For "auto" with float64 it takes none,
    since users of float64 want exact results.
    """
    (N, H, W, C), O, p = x.shape, w.shape[3], f.windows[0].before
    outputs = [window.outputs(size) for window, size in zip(f.windows, (H, W), strict=True)]
    fits = f.windows == (Window(3, 1, p, p),) * 2 and f.groups == 1 and min(outputs) >= 2
    is_exact = f.algorithm == "auto" and x.dtype == "float64"
    if not fits or C < MIN_CHANNELS or is_exact:
        return None
    q = min((grid(m, H, W, p, f.pool) for m in SIDES[f.algorithm]), key=lambda q: q.products)
    budget, U = of(x).chunk_bytes, (q.m + 2) ** 2 * C * O * x.itemsize
    budget = max(budget, min(2 * U, 4 * budget))  # each chunk reads U again
    tiles = C * x.itemsize + O * types_of(x.dtype).sums.itemsize
    chunk = images_per_chunk(N, q.products * tiles, budget)
    return Winograd(x, w, q, chunk), chunk
