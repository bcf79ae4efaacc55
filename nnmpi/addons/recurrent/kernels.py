"""One step of recurrent layers, forward and backward: everything except matrix products.

For n sequences and H hidden elements; a row has the gates next to each other, in PyTorch's order:

    z (n, G H)    x W_ih^T + b_ih of this step; overwritten by the gates
    u (n, G H)    h W_hh^T + b_hh of the previous state
    h, c (n, H)   the previous states; overwritten by those after the step

    dh, dc (n, H) gradients of the states after the step; overwritten by the part of the gradients
                  of the previous states that does not go through u
    d (n, G H)    the gradient of z before it was overwritten; also of u, except for GRU (see e)
    e (n, G H)    GRU: the gradient of u
"""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.activations import (
    sigmoid_gradient_loop,
    sigmoid_loop,
    tanh_gradient_loop,
    tanh_loop,
)
from nnmpi.arrays.kernels.epilogue import relu_gradient_loop
from nnmpi.arrays.native.table import InOut, Out, kernel


def _gates(z: Array, count: int) -> tuple[Array, ...]:
    """Returns views of the columns of z (n, G H) that belong to each of the `count` gates."""
    H = z.shape[1] // count
    return tuple(z[:, k * H : (k + 1) * H] for k in range(count))


@kernel
def lstm_loop(z: InOut, u: Array, cells: Out, squashed: Out, h: Out, c: InOut) -> None:
    """Computes one step of an LSTM: c = f c + i g and h = o tanh(c), with the gates i, f, g, o from
    z + u. Stores the old c in `cells` and tanh(c) in `squashed` for the backward pass."""
    xp, (i, f, g, o) = xp_of(z), _gates(z, 4)
    cells[...] = c
    both = u + z
    sigmoid_loop(both, z)
    tanh_loop(_gates(both, 4)[2], g)
    xp.multiply(i, g, out=h)
    c *= f
    c += h
    tanh_loop(c, squashed)
    xp.multiply(o, squashed, out=h)


@kernel
def lstm_gradient_loop(
    dh: InOut, dc: InOut, z: Array, cells: Array, squashed: Array, d: Out
) -> None:
    xp, (i, f, g, o) = xp_of(z), _gates(z, 4)
    s, through = xp.empty_like(d), xp.empty_like(dh)
    (si, sf, sg, so), (*_, dg, _) = _gates(s, 4), _gates(d, 4)
    xp.multiply(dh, squashed, out=so)
    dh *= o
    tanh_gradient_loop(dh, squashed, through)
    dc += through
    xp.multiply(dc, g, out=si)
    xp.multiply(dc, cells, out=sf)
    xp.multiply(dc, i, out=sg)
    sigmoid_gradient_loop(s, z, d)
    tanh_gradient_loop(sg, g, dg)
    dc *= f
    dh[...] = 0


@kernel
def gru_loop(z: InOut, u: Array, hidden: Out, off: Out, h: InOut) -> None:
    """Computes one step of a GRU with the gates r, t, n: n = tanh(z_n + r u_n), h = n + t (h - n).
    Stores u_n in `hidden` and h - n in `off` for the backward pass."""
    xp, (r, t, n), both = xp_of(z), _gates(z, 3), u + z
    hidden[...] = _gates(u, 3)[2]
    old_n, of_n = n.copy(), _gates(both, 3)[2]
    sigmoid_loop(both, z)
    xp.multiply(r, hidden, out=of_n)
    of_n += old_n
    tanh_loop(of_n, n)
    xp.subtract(h, n, out=off)
    xp.multiply(t, off, out=h)
    h += n


@kernel
def gru_gradient_loop(dh: InOut, z: Array, hidden: Array, off: Array, d: Out, e: Out) -> None:
    xp, (r, t, n), s = xp_of(z), _gates(z, 3), xp_of(z).empty_like(d)
    (sr, st, sn), en, H = _gates(s, 3), _gates(e, 3)[2], dh.shape[1]
    xp.multiply(dh, off, out=st)
    xp.multiply(dh, t, out=sr)
    xp.subtract(dh, sr, out=sn)
    dh[...] = sr
    tanh_gradient_loop(sn, n, en)
    xp.multiply(en, hidden, out=sr)
    sigmoid_gradient_loop(s, z, d)
    d[:, 2 * H :] = en
    e[:, : 2 * H] = d[:, : 2 * H]
    en *= r


def tanh_step(z: Array, u: Array, h: Array) -> None:
    """Computes one step of a plain recurrent layer: h = tanh(z + u)."""
    tanh_loop(u + z, z)
    h[...] = z


def tanh_gradient(dh: Array, z: Array, d: Array) -> None:
    """Computes the backward pass of `tanh_step`: writes d, the gradient of z + u, from dh; z holds
    h since the forward pass. Sets dh to 0: all of it has gone to d."""
    tanh_gradient_loop(dh, z, d)
    dh[...] = 0


def relu_step(z: Array, u: Array, h: Array) -> None:
    """Computes one step of a plain recurrent layer with ReLU: h = max(z + u, 0)."""
    z += u
    xp_of(z).maximum(z, 0, out=z)
    h[...] = z


def relu_gradient(dh: Array, z: Array, d: Array) -> None:
    """Computes the backward pass of `relu_step`, with the arrays of `tanh_gradient`."""
    relu_gradient_loop(dh, z, d)
    dh[...] = 0
