"""Your data parallelism: samples, buckets of gradients, and an optimizer with its state sharded.

README.md says what to do. All arrays are float64. `comm` has the rank, the size, and sums of
arrays that work in place: see README.md.
"""

import numpy as np

from nnmpi.comm import Comm


def own_samples(n: int, micro_batches: int, rank: int, size: int) -> list[slice]:
    """The samples of a batch of n that a rank computes with: a slice for each micro-batch.

    The batch is cut into micro-batches first, then each of these among the ranks. Part i of n
    samples in c parts begins at n * i // c.
    """
    raise NotImplementedError("own_samples")


def cut_buckets(nbytes: list[int], most: int) -> list[list[int]]:
    """The parameters in each bucket, from the last parameter to the first.

    nbytes[i]: the size of parameter i, in the order of the forward pass
    A bucket takes parameters while they have at most `most` bytes together, and at least one.
    """
    raise NotImplementedError("cut_buckets")


class GradientSync:
    """Adds up the gradients of all ranks and micro-batches, while the backward pass goes on."""

    def __init__(self, comm: Comm, shapes: list[tuple[int, ...]], most: int) -> None:
        """shapes[i]: the shape of parameter i. `most`: the bytes of a bucket of `cut_buckets`."""
        raise NotImplementedError("GradientSync")

    def begin(self, samples: list[int], total: int) -> None:
        """Begins a step.

        samples[m]: the number of this rank's samples in micro-batch m; it may be 0
        total: the number of samples of the batch, over all ranks and micro-batches
        """
        raise NotImplementedError("GradientSync.begin")

    def ready(self, m: int, i: int, gradient: np.ndarray) -> None:
        """Takes the gradient of parameter i from micro-batch m, and returns without waiting.

        gradient: shapes[i]; that of the mean loss over this rank's samples of micro-batch m, zeros
        if it has none. It is not changed.
        """
        raise NotImplementedError("GradientSync.ready")

    def finish(self) -> list[np.ndarray]:
        """Ends a step: the gradient of the mean loss over the batch, for each parameter."""
        raise NotImplementedError("GradientSync.finish")


class ShardedAdam:
    """Adam, of whose state each rank holds that of its own part of the parameters (ZeRO 1)."""

    def __init__(
        self,
        comm: Comm,
        values: np.ndarray,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        """values: (n,), all parameters, the same on all ranks; `step` changes them in place."""
        raise NotImplementedError("ShardedAdam")

    def step(self, gradient: np.ndarray) -> None:
        """Makes a step of Adam, after which all ranks have the same values.

        gradient: (n,), this rank's share; the gradient is the sum of the shares of all ranks.
        It may be overwritten.
        """
        raise NotImplementedError("ShardedAdam.step")
