"""Optimizer steps on flat buffers: in place, a cache-sized chunk at a time, without allocation.

Adam keeps M = m / (1 - beta1) and V = v / (1 - beta2), which saves two passes in twelve:

    M = beta1 M + g        V = beta2 V + g^2
    p -= a M / (sqrt(V) + e)    with k = sqrt((1 - beta2) / (1 - beta2^t)),
                                a = lr (1 - beta1) / (1 - beta1^t) / k,  e = eps / k

Rules:

- Each element of p depends only on the elements with its index. So a rank that updates a shard of
  the parameters (ZeRO) gets the same bits as one that updates all. An optimizer that needs a norm
  over p computes it elsewhere (`Update`).
- The same operations in the same order are in `native/optimizers.c` and `cuda/optimizers.cu`, with
  equal bits. If you change one, change all three (`tests/kernels/`).
- Gradients are not changed: users read them after the step, and `--verify` compares them.
- `values` of a step are p rounded to 16 bits, or None: they are merged into p before the step, as
  `merge_loop` does, and written after it. Gradients, of any dtype, are multiplied by `factor`: a
  number, or an array that the device has computed (`decide_loop`), which may also skip the step.
- M and V depend on the betas. When these change, `Optimizer._convert_state` converts M and V.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array, is_array, of, xp_of
from nnmpi.arrays.kernels.precision import merge_loop
from nnmpi.arrays.native.table import InOut, Out, kernel

_CHUNK_BYTES = 1 << 17  # of one array: the five arrays of Adam then fit in the L2 cache


class AdamStep(NamedTuple):
    """The options and the step number t of one Adam step; `decoupled` is AdamW's weight decay."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    t: int


class SgdStep(NamedTuple):
    """The options of one SGD step, named as in PyTorch. `dampening` makes the velocity add
    gradients times 1 - dampening; with Nesterov momentum it has no effect."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    dampening: float = 0.0


class RmsPropStep(NamedTuple):
    """The options of one RMSprop step."""

    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float


BLOCK_OF_SQUARES = 8192
"""The squares that one dot product adds up; above 10,000 OpenBLAS starts threads."""


class MixedStep(NamedTuple):
    """The arguments that mixed precision adds to an optimizer step.

    values   the 16-bit parameters, rounded from those that the optimizer updates; None without
             mixed precision
    factor   a number by which gradients are multiplied, or the array `by` that `decide_loop` has
             written
    """

    values: Array | None = None
    factor: float | Array = 1.0

    @property
    def is_empty(self) -> bool:
        """True if there are no 16-bit values and the factor of the gradients is 1."""
        return self.values is None and not is_array(self.factor) and self.factor == 1

    def times(self, number: float) -> "MixedStep":
        """Returns a MixedStep whose factor of gradients is `number` times as large."""
        factor: Any = self.factor
        if not is_array(factor):
            return self._replace(factor=factor * number)
        # the second element says whether the step is made
        return self._replace(factor=factor * xp_of(factor).array([number, 1.0], factor.dtype))

    def part(self, part: slice) -> "MixedStep":
        """Returns the MixedStep of a slice of the elements."""
        return self if self.values is None else self._replace(values=self.values[part])


PLAIN = MixedStep()  # no mixed precision


def _chunks(
    *arrays: Array, scratches: int = 1, mixed: MixedStep = PLAIN
) -> Iterator[tuple[Array, ...]]:
    """Yields matching chunks of an optimizer step's arrays (parameters, gradient, state), which fit
    in cache, with scratch arrays. Gradients are copies, multiplied by the factor of `mixed`. If the
    device decides to skip the step, all changed arrays are restored at the end."""
    xp, p, values = xp_of(arrays[0]), arrays[0], mixed.values
    factor: Any = mixed.factor
    total = p.size
    size = _CHUNK_BYTES // p.itemsize if of(p).is_host else total
    scratch = [xp.empty(min(size, total), p.dtype) for _ in range(scratches)]
    half_values = [] if values is None else [values]
    changed = [*{id(a): a for a in (p, *arrays[2:], *half_values)}.values()]
    # the host launches the step before it knows the decision: keep what may be put back
    copies = [a.copy() for a in changed] if (is_decided := is_array(factor)) else []
    for start in range(0, total, size):
        part = slice(start, min(start + size, total))
        P, *others = (a[part] for a in arrays)
        if others and (is_decided or others[0].dtype != p.dtype or factor != 1):
            others[0] = others[0].astype(p.dtype)
            others[0] *= factor[0] if is_decided else factor
        if values is not None:
            merge_loop(P, values[part])
        yield (P, *others, *[t[: part.stop - part.start] for t in scratch])
        if values is not None:
            values[part] = P
    for a, old_values in zip(changed, copies, strict=False):
        xp.copyto(a, old_values, where=factor[1] == 0)


@kernel
def scale_loop(p: InOut, factor: float) -> None:
    """Multiplies p by a factor in place."""
    p *= factor


def adam(
    p: Array,
    g: Array,
    M: Array,
    V: Array,
    c: AdamStep,
    largest: Array | None = None,
    mixed: MixedStep = PLAIN,
) -> None:
    """Makes one step of Adam or AdamW on p, in place; M and V are the running sums of g and of g^2,
    divided by 1 - beta1 and by 1 - beta2. With `largest` (AMSGrad), the largest V so far takes the
    place of V."""
    k = ((1 - c.beta2) / (1 - c.beta2**c.t)) ** 0.5
    a, e = c.lr * (1 - c.beta1) / (1 - c.beta1**c.t) / k, c.eps / k
    decay = 0.0 if c.decoupled else c.weight_decay
    shrink = 1 - c.lr * c.weight_decay if c.decoupled else 1.0
    constants = (c.beta1, c.beta2, a, e, decay, shrink, mixed.factor)
    adam_loop(p, g, M, V, largest, mixed.values, *constants)


@kernel
def adam_loop(
    p: InOut,
    g: Array,
    M: InOut,
    V: InOut,
    largest: InOut | None,
    values: InOut | None,
    beta1: float,
    beta2: float,
    a: float,
    e: float,
    decay: float,
    shrink: float,
    factor: float,
) -> None:
    """Makes one step of Adam on flat arrays: p *= shrink, then p -= a M / (sqrt(V) + e).

    M, V and `largest` are those of `adam`; a and e are the learning rate and epsilon with the
    corrections for the step. Weight decay adds decay * p to g, or is `shrink` if decoupled.
    `values` and `factor` are those of `MixedStep`.
    """
    xp, arrays = xp_of(p), (p, g, M, V, V if largest is None else largest)
    for P, G, m, v, top, t in _chunks(*arrays, mixed=MixedStep(values, factor)):
        if shrink != 1:
            P *= shrink
        if decay:
            G = _decayed(P, G, decay, t)
        m *= beta1
        m += G
        xp.multiply(G, G, out=t)
        v *= beta2
        v += t
        if largest is not None:
            xp.maximum(top, v, out=top)
        xp.sqrt(top, out=t)
        t += e
        xp.divide(m, t, out=t)
        t *= a
        P -= t


def sgd(p: Array, g: Array, velocity: Array | None, c: SgdStep, mixed: MixedStep = PLAIN) -> None:
    """Makes one step of SGD with options c on p, in place; `velocity` is None without momentum."""
    used_velocity = velocity if c.momentum else None
    rate = c.lr * (c.momentum if c.nesterov else 1)
    direct, decay = c.nesterov or not c.momentum, c.weight_decay
    if c.dampening and not direct:  # only the velocity uses g + decay * p
        mixed, decay = mixed.times(1 - c.dampening), decay * (1 - c.dampening)
    constants = (c.momentum, decay, c.lr, rate, direct, mixed.factor)
    sgd_loop(p, g, used_velocity, mixed.values, *constants)


@kernel
def sgd_loop(
    p: InOut,
    g: Array,
    velocity: InOut | None,
    values: InOut | None,
    momentum: float,
    decay: float,
    lr: float,
    rate: float,
    direct: bool,
    factor: float,
) -> None:
    """Makes one step of SGD on flat arrays: p -= lr g if `direct` (without momentum, or with
    Nesterov's), and p -= rate velocity with momentum.

    The velocity becomes momentum velocity + g first; None without momentum. Weight decay adds decay
    * p to the gradient. `values` and `factor` are those of `MixedStep`.
    """
    xp, arrays = xp_of(p), (p, g, p if velocity is None else velocity)
    for P, G, v, t in _chunks(*arrays, mixed=MixedStep(values, factor)):
        if decay:
            G = _decayed(P, G, decay, t)
        if velocity is not None:
            v *= momentum
            v += G
        if direct:
            xp.multiply(G, lr, out=t)
            P -= t
        if velocity is not None:
            xp.multiply(v, rate, out=t)
            P -= t


def rmsprop(
    p: Array,
    g: Array,
    squares: Array,
    velocity: Array | None,
    mean: Array | None,
    c: RmsPropStep,
    mixed: MixedStep = PLAIN,
) -> None:
    """Makes one step of RMSprop with options c on p, in place; `velocity` is None without momentum.

    squares = alpha squares + (1 - alpha) g^2
    mean    = alpha mean + (1 - alpha) g          if not None; mean^2 is subtracted from squares
    """
    used_velocity = velocity if c.momentum else None
    constants = (c.lr, c.alpha, 1 - c.alpha, c.eps, c.weight_decay, c.momentum, mixed.factor)
    rmsprop_loop(p, g, squares, used_velocity, mean, mixed.values, *constants)


@kernel
def rmsprop_loop(
    p: InOut,
    g: Array,
    squares: InOut,
    velocity: InOut | None,
    mean: InOut | None,
    values: InOut | None,
    lr: float,
    alpha: float,
    rest: float,
    eps: float,
    decay: float,
    momentum: float,
    factor: float,
) -> None:
    """Makes one step of RMSprop on flat arrays, in place: p -= lr d with d = g / (sqrt(squares) +
    eps); with momentum velocity = momentum velocity + d and p -= lr velocity.

    squares and mean are those of `rmsprop`, with `rest` = 1 - alpha; `decay` * p is added to g.
    `values` and `factor` are those of `MixedStep`.
    """
    xp = xp_of(p)
    arrays = (p, g, squares, p if velocity is None else velocity, p if mean is None else mean)
    mixed = MixedStep(values, factor)
    for P, G, s, v, m, t, u in _chunks(*arrays, scratches=2, mixed=mixed):
        if decay:
            G = _decayed(P, G, decay, u)
        xp.multiply(G, G, out=t)
        t *= rest
        s *= alpha
        s += t
        if mean is None:
            xp.sqrt(s, out=t)
        else:
            xp.multiply(G, rest, out=t)
            m *= alpha
            m += t
            xp.multiply(m, m, out=t)
            xp.subtract(s, t, out=t)
            xp.maximum(t, 0, out=t)  # rounding may leave less than 0
            xp.sqrt(t, out=t)
        t += eps
        xp.divide(G, t, out=t)
        if velocity is not None:
            v *= momentum
            v += t
            xp.multiply(v, lr, out=t)
        else:
            t *= lr
        P -= t


@kernel
def squares_loop(g: Array, factor: float, sums: Out) -> None:
    """Writes the sums of squares of factor * g, one for each BLOCK_OF_SQUARES elements of flat g.

    If g has 16 bits, the sums are in float32.
    """
    if not of(g).is_host:
        g = g.astype(sums.dtype, copy=False)
        sums[...] = 0
        sums[:1] = xp_of(g).dot(g, g) * factor**2
        return
    for k in range(len(sums)):
        block = g[k * BLOCK_OF_SQUARES :][:BLOCK_OF_SQUARES].astype(sums.dtype, copy=False)
        block = block if factor == 1 else block * sums.dtype.type(factor)
        sums[k] = block @ block


@kernel
def decide_loop(
    loss: Array, squares: Array, factor: float, most: float, by: Out, shown: Out
) -> None:
    """Decides on a device whether an optimizer step is made, and by what its gradients are
    multiplied, so that the host need not wait for the loss and the norm.

    by[0]    `factor`, reduced to clip the gradients to the norm `most`
    by[1]    1 if loss and squares are finite, so that the step is made, else 0
    shown    a copy of loss and squares, which the host reads later
    """
    xp = xp_of(loss)
    shown[0], shown[1] = loss, squares
    by[0] = xp.minimum(most / (xp.sqrt(squares) + 1e-6), 1.0) * factor
    by[1] = xp.isfinite(shown).all()


def _decayed(P: Array, G: Array, weight_decay: float, t: Array) -> Array:
    """Returns G + weight_decay * P in the scratch array t, since gradients must not be changed."""
    xp_of(P).multiply(P, weight_decay, out=t)
    t += G
    return t
