"""What a sharded model sends, by formula, from the shapes between its layers.

T ranks, n numbers      sent by a rank      where
all-reduce by a ring    2 (T - 1) / T n     output of a row, gradient of the input of a column
all-gather by a ring      (T - 1) / T n     output of a column that gathers; 4 T numbers of a loss

Sums of few bytes go by `doubling`, which sends more in fewer messages where T > 2. Through memory
that a node shares nothing is sent, and the formula counts what would be. Where activations are
computed again (--recompute), sums of the forward pass are made again, which it does not count.
"""

from nnmpi.autograd import Tensor
from nnmpi.nn import Sequential
from nnmpi.nn.seeding import seeded
from nnmpi.nn.sequential import flattened, groups
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding


def bytes_a_sample(stage: Sequential, x: Tensor, sharding: Sharding, ranks: int) -> float:
    """What a rank sends for one sample, forward and back; every rank calls it.

    x are some samples. The gradient of x is counted if it requires one, the loss is not.
    """
    sharded = {layer.path: layer for layer in sharding.layers}
    samples, numbers = len(x), 0
    for group in groups([layer for _, layer in flattened(stage)]):
        with seeded(0):  # so that this module is not counted among those constructed
            y = Sequential(*group)(x)
        if group[0].path in sharded:
            numbers += _numbers(sharded[group[0].path], x, y)
        x = y
    return numbers / samples * x.dtype.itemsize * (ranks - 1) / ranks


def _numbers(layer: ShardedLayer, x: Tensor, y: Tensor) -> int:
    """How many numbers are gathered, and twice how many are summed, between x and y."""
    if layer.how in ("row", "rows"):
        return 2 * y.size
    if layer.how == "column":
        return 2 * x.size * x.requires_grad + y.size * layer.gathers
    return 0


def loss_bytes_a_sample(sharding: Sharding, itemsize: int, ranks: int) -> int:
    """What a rank sends for the loss of one sample, if classes are sharded."""
    return 0 if sharding.output is None else 4 * (ranks - 1) * max(itemsize, 4)
