"""LSTM, GRU and RNN."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=("nnmpi.addons.recurrent", "nnmpi.nn.utils.rnn"),
    rows={
        "names": {
            "nn.utils.rnn": "nnmpi.nn.utils.rnn",
            **places(
                {
                    "addons.recurrent.cells": "GRUCell LSTMCell RNNCell",
                    "addons.recurrent.layers": "GRU LSTM RNN",
                },
                "nn.",
            ),
        },
        "modules": {
            "nn.layers.recurrent": "nnmpi.addons.recurrent.layers",
            "nn.layers.recurrent_cells": "nnmpi.addons.recurrent.cells",
            "nn.packed": "nnmpi.addons.recurrent.packed",
        },
        "of_step": {"recurrent": "nnmpi.addons.recurrent"},
    },
)
