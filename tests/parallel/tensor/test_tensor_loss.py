"""The cross-entropy over sharded classes: as over whole logits."""

import re

import numpy as np
import pytest
from helpers.tensor import laws_tensor_loss as laws

from nnmpi.autograd import Tensor
from nnmpi.comm import thread_ranks
from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss

KINDS = ("plain", "ties", "large", "minus infinity", "nan")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_ordinary_loss(kind, reduction, size):
    for dtype in ("float64", "float32"):
        thread_ranks.run(size, laws.equals_the_ordinary_loss, kind, reduction, dtype)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("how", laws.OPTIONS)
def test_equals_it_with_every_option(how, size):
    for reduction in ("mean", "sum", "none"):
        thread_ranks.run(size, laws.equals_the_ordinary_loss, "plain", reduction, "float64", how)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_correct_predictions_are_those_of_argmax(kind, size):
    thread_ranks.run(size, laws.evaluation_equals_argmax, kind)


def test_logits_never_travel():
    thread_ranks.run(3, laws.logits_never_travel)


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
