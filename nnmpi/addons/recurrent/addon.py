"""LSTM, GRU and RNN."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=(
        *("nnmpi.nn.layers.recurrent", "nnmpi.nn.layers.recurrent_cells"),
        *("nnmpi.autograd.ops.recurrent", "nnmpi.autograd.ops.distinct_rows"),
        "nnmpi.arrays.kernels.recurrent",
        *("nnmpi.nn.packed", "nnmpi.nn.utils.rnn"),
    ),
    rows={
        "names": {
            "nn.utils.rnn": "nnmpi.nn.utils.rnn",
            **places(
                {
                    "nn.layers.recurrent": "GRU LSTM RNN",
                    "nn.layers.recurrent_cells": "GRUCell LSTMCell RNNCell",
                },
                "nn.",
            ),
        }
    },
)
