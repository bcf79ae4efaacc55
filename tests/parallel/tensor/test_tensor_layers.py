"""Sharded layers and `parallelize`: as the ordinary layers on one rank."""

import re

import numpy as np
import pytest
from helpers.tensor import laws_tensor_layers as laws

from nnmpi import nn
from nnmpi.comm import thread_ranks
from nnmpi.nn.models import MODELS
from nnmpi.parallel.tensor.conv import RowConv2d
from nnmpi.parallel.tensor.parallelize import parallelize


def test_groups_of_channels_stay_on_their_ranks_where_they_fit():
    def shards(comm):
        case = laws.CASES["a group on two ranks"]
        return laws.words(parallelize(case.build(), comm, np.zeros(case.shape)))

    assert thread_ranks.run(2, shards) == ["column channels row column"] * 2
    assert thread_ranks.run(3, shards) == ["column,gathers copy column row"] * 3


X = np.zeros((2, 4))
IMAGES = np.zeros((2, 4, 5, 5))

REFUSED = {
    "the model is a single Linear, which cannot be replaced in place": (lambda: nn.Linear(4, 4), X),
    "layer 1 (Linear): 2 channels cannot be divided among 3": (
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        X,
    ),
    "layer 1.0 (Conv2d): 2 channels": (
        lambda: nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(4, 2, 3))),
        IMAGES,
    ),
    "layer 0 (Embedding): 2 channels": (
        lambda: nn.Sequential(nn.Embedding(2, 5)),
        np.zeros((2, 4), np.int64),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    def refuses(comm):
        build, x = REFUSED[message]
        model = build()
        before = repr(model)
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            parallelize(model, comm, x)
        assert "\n" not in str(error.value)
        assert repr(model) == before
        assert not any(p.is_drawn for p in model.parameters())

    thread_ranks.run(3, refuses)


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_is_sharded_once(size):
    def twice(comm):
        model, x = MODELS["digits-cnn"](), np.zeros((2, 1, 8, 8))
        parallelize(model, comm, x)
        with pytest.raises(ValueError, match=r"layer 0 .ColumnConv2d.* is sharded already"):
            parallelize(model, comm, x)

    thread_ranks.run(size, twice)


def test_a_sum_over_ranks_is_not_pooled():
    """Pooling parts of the sum would give other numbers."""

    def refuses(comm):
        layer = RowConv2d(4, 3, 3, comm)
        with pytest.raises(
            ValueError, match="RowConv2d cannot fuse pooling: it sums over ranks first"
        ):
            layer(np.zeros((2, 2, 5, 5), "float32"), pool=True)

    thread_ranks.run(2, refuses)


def test_a_stateless_layer_may_be_used_twice():
    def shards(comm):
        relu = nn.ReLU()
        model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 3))
        sharding = parallelize(model, comm, X)
        assert [x.how for x in sharding.layers] == ["column", "row", "column"]
        assert sharding.output == (0, 1, 3)

    thread_ranks.run(2, shards)


def test_frozen_parameters_stay_frozen_and_given_values_stay():
    def shards(comm):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[0].weight.requires_grad = False
        model[2].bias.data = np.arange(4.0)
        parallelize(model, comm, X)
        assert not model[0].weight.requires_grad
        assert (model[2].bias.data == np.arange(4)).all()

    thread_ranks.run(2, shards)
