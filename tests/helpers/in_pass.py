"""A forward pass as a trainer has it: of a step, and of some samples of the data."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from nnmpi.nn.passes import LOCAL, BatchStats, Pass, current_pass


@contextmanager
def in_pass(
    step: int, samples: np.ndarray | list[int] | None, stats: BatchStats = LOCAL
) -> Iterator[None]:
    """In the block models run in a pass of this step and of the samples with these numbers."""
    numbers = None if samples is None else np.asarray(samples)
    token = current_pass.set(Pass(step, numbers, stats))
    try:
        yield
    finally:
        current_pass.reset(token)
