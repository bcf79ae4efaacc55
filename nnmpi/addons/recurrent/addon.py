"""LSTM, GRU and RNN."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=("nnmpi.addons.recurrent",),
    of_step=("nnmpi.addons.recurrent",),
    classes_of_step=("nnmpi.addons.recurrent.ops", "nnmpi.addons.recurrent.distinct_rows"),
    rows={
        "names": {
            "nn.utils.rnn": "nnmpi.addons.recurrent.rnn",
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
            "nn.utils.rnn": "nnmpi.addons.recurrent.rnn",
        },
        "op_types": {
            "nnmpi.addons.recurrent.ops:recurrent": "nnmpi.addons.recurrent.ops:in_16_bits"
        },
    },
)
