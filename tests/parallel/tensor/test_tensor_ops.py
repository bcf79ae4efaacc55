"""Ops between ranks that hold parts of one model."""

import numpy as np
import pytest

from nnmpi.autograd import Tensor
from nnmpi.comm import thread_ranks
from nnmpi.parallel.tensor import ops


def test_without_shared_memory_the_sum_goes_by_messages():
    def sum_of(comm):
        y = ops.reduce(Tensor(np.full(5000, comm.rank + 1.0)), comm).data
        return y, sum(comm.ledger.sent_bytes)

    for y, sent in thread_ranks.run(3, sum_of, free_memory=100):
        assert (y == 6).all()
        assert sent >= 4 / 3 * y.nbytes - 32


def test_bounds_of_other_channels_are_refused():
    def wrong(comm):
        with pytest.raises(ValueError, match=r"scatter: input of shape \(2, 5\).*must have 6"):
            ops.scatter(Tensor(np.zeros((2, 5))), comm, (0, 3, 6))

    thread_ranks.run(2, wrong)
