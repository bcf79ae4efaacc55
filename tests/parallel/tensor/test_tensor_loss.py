"""What the cross-entropy over sharded classes refuses."""

import re

import numpy as np
import pytest

from nnmpi.autograd import Tensor
from nnmpi.comm import thread_ranks
from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ((2, 4), [0, 1], "logits of shape (2, 4); it takes (N, 3, ...) here, classes 0 to 2 of 5"),
        ((2, 3), [0, 5], "labels from 0 to 5 for 5 classes: they must be 0 to 4"),
        ((2, 3), [0.0, 1.0], "with float64 labels"),
    ],
)
def test_what_does_not_fit_is_refused(logits, labels, message):
    def refuses(comm):
        if comm.rank == 0:
            with pytest.raises(ValueError, match=re.escape(message)):
                ShardedCrossEntropyLoss(comm, (0, 3, 5))(Tensor(np.zeros(logits)), labels)

    thread_ranks.run(2, refuses)


@pytest.mark.parametrize("bounds", [None, (0, 5), (0, 1, 2, 5)])
def test_bounds_of_other_ranks_are_refused(bounds):
    def refuses(comm):
        with pytest.raises(ValueError, match=r"must be 3 numbers; .* CrossEntropyLoss takes them"):
            ShardedCrossEntropyLoss(comm, bounds)

    thread_ranks.run(2, refuses)
